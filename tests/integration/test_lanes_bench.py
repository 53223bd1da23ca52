"""`orchid bench lanes` on real processes and tiny models."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from deploy.cli import app
from worker.models.synthetic import build_synthetic
from worker.models.synthetic_generator import build_tiny_generator


def test_both_lanes_are_measured_alone_and_together(tmp_path: Path) -> None:
    repository = tmp_path / "models"
    build_synthetic(repository, "tiny")
    build_tiny_generator(repository, "tiny-chat")
    out = tmp_path / "lanes.json"
    options = ["--encoder", "tiny", "--decoder", "tiny-chat", "--repository", str(repository)]
    options += ["--rounds", "1", "--seconds", "4", "--streams", "2", "--json", str(out)]
    result = CliRunner().invoke(app, ["bench", "lanes", *options])
    assert result.exit_code == 0, result.output
    summary = json.loads(out.read_bytes())["summary"]
    assert len(summary) == 7 * 3
    for name in ("encoder_p50_ms", "encoder_p95_ms", "decode_tokens_per_s"):
        alone, together = summary[f"{name}_alone"], summary[f"{name}_together"]
        assert alone > 0
        assert summary[f"{name}_ratio"] == together / alone


def test_a_model_that_generates_nothing_is_no_decoder(tmp_path: Path) -> None:
    build_synthetic(tmp_path, "tiny")
    options = ["--encoder", "tiny", "--decoder", "tiny", "--repository", str(tmp_path)]
    result = CliRunner().invoke(app, ["bench", "lanes", *options])
    assert result.exit_code == 1
    assert "tiny generates no text" in result.output
