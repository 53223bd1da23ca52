"""What slices of the telemetry bench say of cost: medians, and intervals of these. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
from numpy.typing import NDArray

OFF, METRICS, TRACING = "off", "metrics", "tracing"
FILE_OFF, FILE = "file_off", "file"
# What each is compared with: the same processes, without it.
AGAINST = {METRICS: OFF, TRACING: OFF, FILE: FILE_OFF}
# Beside the others: slices without anything against such slices.
NULL = "null"

_RESAMPLES = 4000
_SIDES = (2.5, 97.5)


@dataclass(frozen=True, slots=True)
class Sample:
    """One slice; CPU is that of the control plane and of the workers, for each call.

    `traced` of the `calls` asked to be recorded, `scrapes` happened meanwhile. `late_per_s` is the
    throughput of its second half: what is recorded leaves the process with a delay.
    """

    mode: str
    repeat: int
    calls: int
    traced: int
    answered_per_s: float
    late_per_s: float
    controlplane_cpu_ms: float
    worker_cpu_ms: float
    p50_ms: float
    p99_ms: float
    scrapes: int
    scrape_ms: float
    scrape_bytes: int

    @property
    def cpu_ms(self) -> float:
        """Of all processes."""
        return self.controlplane_cpu_ms + self.worker_cpu_ms


@dataclass(frozen=True, slots=True)
class Interval:
    """A median, and between what it is with 95 % confidence (bootstrap over the repeats)."""

    middle: float
    low: float
    high: float

    def into(self, summary: dict[str, float], name: str) -> None:
        """Put it down under a name."""
        summary[name] = self.middle
        summary[f"{name}_low"] = self.low
        summary[f"{name}_high"] = self.high


def summarise(
    samples: Sequence[Sample], *, seconds: float, scrape_s: float, unsampled_ns: float
) -> dict[str, float]:
    """Medians over the repeats of what is lost within each, with their intervals.

    `metrics_cost`, `tracing_cost` and `file_cost` are shares of the throughput without it (of the
    second halves, where spans are on their way), `*_cpu_ratio` CPU a request over that without it;
    `null_*` compares slices without anything, and is what the bench cannot tell apart. Slices of
    `seconds` were scraped once: what metrics cost is that of a scrape every `scrape_s`.
    `unsampled_cost` is the CPU that looking for a trace context takes, `unsampled_ns` for each
    call, which slices without anything have as well.
    """
    found: dict[str, float] = {}
    for mode in (OFF, *AGAINST, FILE_OFF):
        chosen = [sample for sample in samples if sample.mode == mode]
        found[f"{mode}_rps"] = median(sample.answered_per_s for sample in chosen)
        found[f"{mode}_cpu_ms"] = median(sample.cpu_ms for sample in chosen)
        found[f"{mode}_p99_ms"] = median(sample.p99_ms for sample in chosen)
    for mode, against in AGAINST.items():
        scale = seconds / scrape_s if mode == METRICS else 1.0
        rate = _rate if mode == METRICS else _late_rate
        for name, value in (("cost", rate), ("cpu_ratio", _cpu)):
            ratios = _means(samples, mode, value) / _means(samples, against, value)
            lost = 1.0 - ratios if name == "cost" else ratios - 1.0
            _interval(scale * lost + (name == "cpu_ratio")).into(found, f"{mode}_{name}")
    for name, value in (("cost", _rate), ("cpu_ratio", _cpu)):
        ratios = _null(samples, value)
        _interval(1.0 - ratios if name == "cost" else ratios).into(found, f"{NULL}_{name}")
    scraped = [sample for sample in samples if sample.scrapes]
    found["scrape_ms"] = median(sample.scrape_ms for sample in scraped)
    found["scrape_bytes"] = median(sample.scrape_bytes for sample in scraped)
    found["unsampled_us"] = unsampled_ns / 1e3
    found["unsampled_cost"] = unsampled_ns / 1e6 / found[f"{OFF}_cpu_ms"]
    return found


def _rate(sample: Sample) -> float:
    return sample.answered_per_s


def _late_rate(sample: Sample) -> float:
    return sample.late_per_s


def _cpu(sample: Sample) -> float:
    return sample.cpu_ms


def _means(
    samples: Sequence[Sample], mode: str, value: Callable[[Sample], float]
) -> NDArray[np.float64]:
    """The mean of a mode's slices in each repeat, in order of the repeats."""
    of: dict[int, list[float]] = {}
    for sample in samples:
        if sample.mode == mode:
            of.setdefault(sample.repeat, []).append(value(sample))
    return np.array([np.mean(of[repeat]) for repeat in sorted(of)])


def _null(samples: Sequence[Sample], value: Callable[[Sample], float]) -> NDArray[np.float64]:
    """The second over the first slice without anything of each repeat, at both clusters."""
    of: dict[tuple[str, int], list[float]] = {}
    for sample in samples:
        if sample.mode in (OFF, FILE_OFF):
            of.setdefault((sample.mode, sample.repeat), []).append(value(sample))
    return np.array([second / first for first, second in of.values()])


def _interval(values: NDArray[np.float64]) -> Interval:
    drawn = np.random.default_rng(1).choice(values, (_RESAMPLES, len(values)))
    low, high = np.percentile(np.median(drawn, axis=1), _SIDES)
    return Interval(float(np.median(values)), float(low), float(high))
