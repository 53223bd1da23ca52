"""The telemetry bench compares what it says it compares, in one run."""

from __future__ import annotations

from collections import Counter

from bench.telemetry import METRICS, MODES, TelemetrySettings, run_telemetry


def test_a_short_comparison_is_reported_whole() -> None:
    told: list[str] = []
    settings = TelemetrySettings(repeats=1, seconds=0.3, warmup_s=0.2, in_flight=4)
    report = run_telemetry(settings, lambda mode, number, of: told.append(mode))
    assert Counter(told) == Counter(MODES)
    assert {"metrics_cost", "tracing_cost", "file_cost", "off_rps"} <= set(report.summary)
    # Traces arrived where they were sent, and metrics were scraped under load and only there.
    assert report.settings["spans_received"] > 0 and report.settings["span_bytes_written"] > 0
    scrapes = {point["mode"]: point["scrapes"] for point in report.points}
    assert scrapes.pop(METRICS) > 0 and not any(scrapes.values())
