"""The flood bench counts what the door promised."""

from __future__ import annotations

from bench.flood import FloodSettings, run_flood


def test_a_short_flood_is_reported_whole() -> None:
    phases: list[str] = []
    # Many times the capacity, which other work makes look smaller than it is during the flood.
    report = run_flood(FloodSettings(workers=1, factor=20.0, seconds=1.0), phases.append)
    assert len(phases) == 2
    summary = report.summary
    (point,) = report.points
    assert set(summary) == {
        "capacity_per_s", "offered_per_s", "on_time_of_admitted", "on_time_per_s",
        "refused_share", "lost", "deepest_queue", "controlplane_growth_mib",
    }  # fmt: skip
    assert summary["offered_per_s"] > summary["capacity_per_s"] > 0
    assert summary["refused_share"] == point["refused"] / point["offered"] > 0
    assert 0 <= summary["on_time_of_admitted"] <= 1
