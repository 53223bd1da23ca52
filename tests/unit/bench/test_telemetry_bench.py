"""Costs are what is lost within a repeat, whatever the machine did between repeats."""

from __future__ import annotations

import pytest

from bench.telemetry import FILE, METRICS, MODES, OFF, TRACING, Sample, summarise


def sample(mode: str, repeat: int, rate: float, cpu_ms: float = 1.0) -> Sample:
    return Sample(mode, repeat, rate, cpu_ms, cpu_ms, 1.0, 2.0, 3, 4.0, 5000)


def test_a_slow_minute_of_the_machine_is_no_cost() -> None:
    speeds = (1000.0, 500.0, 900.0)
    lost = {OFF: 0.0, METRICS: 0.01, TRACING: 0.02, FILE: 0.03}
    samples = [
        sample(mode, repeat, speed * (1.0 - lost[mode]), 1.0 + lost[mode])
        for repeat, speed in enumerate(speeds)
        for mode in MODES
    ]
    # The order in which they were taken says nothing.
    summary = summarise(samples[::-1])
    for mode in MODES[1:]:
        assert summary[f"{mode}_cost"] == pytest.approx(lost[mode])
        assert summary[f"{mode}_cpu_ratio"] == pytest.approx(1.0 + lost[mode])
    assert summary["off_rps"] == 900.0
    assert (summary["scrape_ms"], summary["scrape_bytes"]) == (4.0, 5000)


def test_one_bad_repeat_does_not_decide() -> None:
    samples = [sample(mode, repeat, 100.0) for repeat in range(5) for mode in MODES]
    samples[1] = sample(METRICS, 0, 10.0)
    assert summarise(samples)["metrics_cost"] == 0.0
