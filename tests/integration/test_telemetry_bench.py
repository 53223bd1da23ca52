"""The telemetry bench compares what it says it compares, in one run."""

from __future__ import annotations

from collections import Counter

from bench.telemetry import MODES, TelemetrySettings, run_telemetry
from bench.telemetry_cost import FILE, FILE_OFF, METRICS, OFF, TRACING


def test_a_short_comparison_is_reported_whole() -> None:
    told: list[str] = []
    settings = TelemetrySettings(repeats=2, seconds=0.2, in_flight=4)
    report = run_telemetry(settings, lambda mode, number, of: told.append(mode))
    # As often with as without, of each.
    assert Counter(told) == {OFF: 4, METRICS: 2, TRACING: 2, FILE_OFF: 4, FILE: 4}
    assert {point["mode"] for point in report.points} == set(MODES)
    assert {"metrics_cost", "tracing_cost", "file_cost", "off_rps"} <= set(report.summary)
    # Traces arrived where they were sent, and metrics were scraped under load and only there.
    assert report.settings["spans_received"] > 0 and report.settings["span_bytes_written"] > 0
    for point in report.points:
        assert point["scrapes"] == (4 if point["mode"] == METRICS else 0)
        assert point["controlplane_cpu_ms"] > 0 and point["worker_cpu_ms"] > 0
