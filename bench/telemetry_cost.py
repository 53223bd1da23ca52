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

    `late_per_s` is the throughput of its second half: what is recorded leaves with a delay.
    """

    mode: str
    repeat: int
    calls: int
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
    samples: Sequence[Sample], *, scraped: float, traced: float, unsampled_ns: float
) -> dict[str, float]:
    """Medians over the repeats of what is lost within each, with their intervals.

    `metrics_cost`, `tracing_cost` and `file_cost` are shares of the throughput without it (of the
    second halves, where spans are on their way), `*_cpu_ratio` CPU a request over that without it;
    `null_*` compares slices without anything, and is what the bench cannot tell apart. Of what
    scraped and traced slices lose the part `scraped` and `traced` is told. `unsampled_cost` is the
    CPU that looking for a trace context takes, `unsampled_ns` for each call, which slices without
    anything have as well.
    """
    found: dict[str, float] = {}
    for mode in (OFF, *AGAINST, FILE_OFF):
        chosen = [sample for sample in samples if sample.mode == mode]
        found[f"{mode}_rps"] = median(sample.answered_per_s for sample in chosen)
        found[f"{mode}_cpu_ms"] = median(sample.cpu_ms for sample in chosen)
        found[f"{mode}_p99_ms"] = median(sample.p99_ms for sample in chosen)
    for mode, against in AGAINST.items():
        part, rate = (scraped, _rate) if mode == METRICS else (traced, _late_rate)
        slower = _means(samples, against, rate) / _means(samples, mode, rate) - 1.0
        dearer = _means(samples, mode, _cpu) / _means(samples, against, _cpu) - 1.0
        _tell(found, mode, part * slower, part * dearer)
    rates, cpu = _null(samples, _rate), _null(samples, _cpu)
    _tell(found, NULL, traced * (1.0 / rates - 1.0), traced * (cpu - 1.0))
    with_scrapes = [sample for sample in samples if sample.scrapes]
    found["scrape_ms"] = median(sample.scrape_ms for sample in with_scrapes)
    found["scrape_bytes"] = median(sample.scrape_bytes for sample in with_scrapes)
    found["unsampled_us"] = unsampled_ns / 1e3
    found["unsampled_cost"] = unsampled_ns / 1e6 / found[f"{OFF}_cpu_ms"]
    return found


def _tell(
    found: dict[str, float], what: str, slower: NDArray[np.float64], dearer: NDArray[np.float64]
) -> None:
    """What a request takes longer, and what CPU more, as shares; by repeat."""
    _interval(slower / (1.0 + slower)).into(found, f"{what}_cost")
    _interval(1.0 + dearer).into(found, f"{what}_cpu_ratio")


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
