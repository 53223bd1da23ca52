"""`orchid bench generation` on real processes and a tiny model."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from deploy.cli import app
from worker.models.synthetic_generator import build_tiny_generator


def test_policies_and_prefixes_are_measured_on_a_real_worker(tmp_path: Path) -> None:
    build_tiny_generator(tmp_path / "models", "tiny-chat", context=4096)
    out = tmp_path / "result.json"
    # Generous targets: what is asked is whether everything is played and counted.
    options = ["--model", "tiny-chat", "--repository", str(tmp_path / "models"), "--threads", "1"]
    options += ["--policies", "slo,serial", "--loads", "0.2", "--seconds", "2"]
    options += ["--capacity-seconds", "3", "--first-token-ms", "60000", "--token-ms", "60000"]
    result = CliRunner().invoke(app, ["bench", "generation", *options, "--json", str(out)])
    assert result.exit_code == 0, result.output
    summary = json.loads(out.read_bytes())["summary"]
    assert summary["capacity_per_s"] > 0
    assert summary["slo@0.2.slo_attainment"] > 0 and summary["serial@0.2.slo_attainment"] > 0
    assert summary["prefix_cached_tokens"] == 512
    assert summary["prefix_other_tenant_cached_tokens"] == 0
