"""The isolation bench asks the same in each phase and counts what was charged."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from bench.isolation.lane import IsolationSettings
from bench.isolation.run import run_isolation


def test_a_short_run_is_reported_whole(tmp_path: Path) -> None:
    phases: list[str] = []
    settings = IsolationSettings("encoder", rounds=1, seconds=1.0, lead_s=0.3, times=4.0)
    report = run_isolation(settings, tmp_path, tmp_path, np.random.default_rng(0), phases.append)
    summary = report.summary
    # The steady tenant asks the same whoever is beside it.
    assert summary["alone.offered"] == summary["share.offered"] == summary["flood.offered"] > 0
    steady = [point for point in report.points if point["tenant"] == "steady"]
    other = [point for point in report.points if point["tenant"] == "other"]
    assert [point["phase"] for point in steady] == ["alone", "share", "flood"]
    assert other[1]["offered"] > other[0]["offered"]
    assert {"on_time_moved", "on_time_moved_of_share", "held", "returned", "return_ms"} <= set(
        summary
    )
    assert summary["fair_bound_ms"] > 0 and summary["fair_looks"] > 0
    assert abs(summary["cpu_charged"] - 1.0) <= 0.05
    assert len(phases) == 4
