"""Costs are what is lost within a repeat, whatever the machine did between repeats."""

from __future__ import annotations

import os
import time

import pytest

from bench.load.cpu import process_cpu_ns
from bench.telemetry import MODES
from bench.telemetry_cost import AGAINST, FILE, FILE_OFF, METRICS, OFF, TRACING, Sample, summarise
from bench.unsampled import unsampled_ns

LOST = {OFF: 0.0, FILE_OFF: 0.0, METRICS: 0.01, TRACING: 0.02, FILE: 0.03}


def sample(mode: str, repeat: int, rate: float, cpu_ms: float = 1.0) -> Sample:
    scrapes = 2 if mode == METRICS else 0
    size = 5000 if scrapes else 0
    return Sample(mode, repeat, 100, rate, rate, cpu_ms, cpu_ms, 1.0, 2.0, scrapes, 4.0, size)


def slices(speeds: tuple[float, ...]) -> list[Sample]:
    """Every slice of as many repeats, each at its own speed of the machine."""
    return [
        sample(mode, repeat, speed / (1.0 + LOST[mode]), (1.0 + LOST[mode]) / speed)
        for repeat, speed in enumerate(speeds)
        for mode in (OFF, METRICS, OFF, TRACING, FILE_OFF, FILE, FILE_OFF, FILE)
    ]


def summary(samples: list[Sample], **changes: float) -> dict[str, float]:
    parts = {"scraped": 1.0, "traced": 1.0, "unsampled_ns": 1500.0, **changes}
    return summarise(samples, **parts)


def test_a_slow_minute_of_the_machine_is_no_cost() -> None:
    found = summary(slices((1000.0, 500.0, 900.0)))
    for mode in AGAINST:
        assert found[f"{mode}_cost"] == pytest.approx(LOST[mode] / (1.0 + LOST[mode]))
        assert found[f"{mode}_cpu_ratio"] == pytest.approx(1.0 + LOST[mode])
        assert found[f"{mode}_cost_low"] == pytest.approx(found[f"{mode}_cost_high"])
    assert (found["null_cost"], found["null_cpu_ratio"]) == pytest.approx((0.0, 1.0))
    assert found["off_rps"] == 900.0
    assert (found["scrape_ms"], found["scrape_bytes"]) == (4.0, 5000)
    assert found["unsampled_us"] == 1.5
    assert set(MODES) == {OFF, FILE_OFF, *AGAINST}


def test_one_bad_slice_does_not_decide() -> None:
    samples = slices((100.0,) * 5)
    at = next(n for n, each in enumerate(samples) if each.mode == METRICS)
    samples[at] = sample(METRICS, 0, 10.0)
    assert summary(samples)["metrics_cpu_ratio"] == pytest.approx(1.0 + LOST[METRICS])


def test_of_what_is_seen_the_part_of_the_usual_rates_is_told() -> None:
    found = summary(slices((100.0,) * 4), scraped=0.5, traced=0.1)
    assert found["metrics_cpu_ratio"] == pytest.approx(1.0 + LOST[METRICS] / 2)
    for mode in (TRACING, FILE):
        slower = LOST[mode] / 10
        assert found[f"{mode}_cpu_ratio"] == pytest.approx(1.0 + slower)
        assert found[f"{mode}_cost"] == pytest.approx(slower / (1.0 + slower))


def test_an_interval_is_around_its_median_and_wider_where_repeats_differ() -> None:
    samples = slices((100.0,) * 20)
    noisy = [
        sample(TRACING, s.repeat, s.answered_per_s * (1 + 0.01 * (s.repeat % 5)))
        if s.mode == TRACING
        else s
        for s in samples
    ]
    found = summary(noisy)
    assert found["tracing_cost_low"] <= found["tracing_cost"] <= found["tracing_cost_high"]
    assert found["tracing_cost_high"] > found["tracing_cost_low"]


def test_the_clock_of_a_process_is_its_cpu_time() -> None:
    before = time.process_time_ns()
    read = process_cpu_ns(os.getpid())
    assert before <= read <= time.process_time_ns()
    with pytest.raises(OSError, match=r"."):
        process_cpu_ns(2**22 + 1)


def test_a_call_that_is_not_recorded_costs_a_look() -> None:
    assert 0.0 <= unsampled_ns(200, 2) < 1e6
