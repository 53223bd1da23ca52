"""The demonstration's streamed answer, from a real decode worker with a tiny model."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from deploy.cli.demo_generation import PROMPT, stream_one
from worker.models.synthetic import build_synthetic
from worker.models.synthetic_generator import build_tiny_generator


def test_one_answer_is_streamed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build_tiny_generator(tmp_path / "models", "tiny-chat", context=4096)
    told = StringIO()
    stream_one(Console(file=told), tmp_path / "models", tmp_path / "state", 1)
    printed = capsys.readouterr()
    assert PROMPT in told.getvalue()
    assert printed.out.strip() and "96 tokens" in printed.err


def test_without_a_language_model_it_says_how_to_build_one(tmp_path: Path) -> None:
    build_synthetic(tmp_path / "models", "tiny")
    told = StringIO()
    stream_one(Console(file=told, width=120), tmp_path / "models", tmp_path / "state", 1)
    assert "orchid models build --language-model" in told.getvalue()
