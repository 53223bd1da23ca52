"""The example configuration is valid and, classes apart, equals the defaults."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from controlplane.config import ControlPlaneConfig
from deploy.config import load_config
from worker.config import WorkerConfig

EXAMPLE = Path(__file__).parents[3] / "deploy" / "orchid.yaml"


def test_the_control_plane_section_shows_the_defaults() -> None:
    loaded = load_config(ControlPlaneConfig, "controlplane", EXAMPLE)
    assert loaded.classes["audit"].minimum_quality == 0.9
    assert replace(loaded, classes={}) == ControlPlaneConfig()


def test_the_worker_section_shows_the_defaults() -> None:
    loaded = load_config(WorkerConfig, "worker", EXAMPLE)
    assert replace(loaded, repository=WorkerConfig().repository) == WorkerConfig()


def test_the_decode_section_shows_the_defaults() -> None:
    loaded = load_config(WorkerConfig, "decode", EXAMPLE, base="worker")
    assert replace(loaded, repository=WorkerConfig().repository) == WorkerConfig()
