"""What a tenant saw of its requests, and what a flood beside it moved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.isolation.interval import Times, ratio_interval

# Phases of a round: alone, beside the other one at its share, beside its flood.
ALONE, SHARE, FLOOD = "alone", "share", "flood"
PHASES = (ALONE, SHARE, FLOOD)
# What a flood may move against the other one at its share: on-time share, and times of each p99.
ON_TIME_MOVED, P99_RATIO = 0.02, 1.1


@dataclass(frozen=True, slots=True)
class Seen:
    """One request: when it was due, ns after its tenant began, and what its caller had of it.

    `times_ms` are the lane's latencies by name, those that there were. `quality` is the answering
    variant's, nan without an answer. `over_ns` is when it was over.
    """

    due_ns: int
    over_ns: int
    on_time: bool
    refused: bool
    times_ms: dict[str, float]
    quality: float = float("nan")


@dataclass(frozen=True, slots=True)
class Figures:
    """Shares are of the offered; `p50_ms` and `p99_ms` by the lane's latencies, of `count` each.

    `returned` is the on-time share of what was asked within one `deadline_ns` of a beginning, when
    the other one had everything, `return_ms` the longest time until the first answer from there.
    """

    offered: int
    on_time: float
    refused: float
    quality: float
    count: dict[str, int]
    p50_ms: dict[str, float]
    p99_ms: dict[str, float]
    returned: float
    return_ms: float


def figures(rounds: Sequence[Sequence[Seen]], deadline_ns: int) -> Figures:
    """The figures of a phase over its rounds, whose requests count as one sample."""
    seen = [each for played in rounds for each in played]
    names = dict.fromkeys(name for each in seen for name in each.times_ms)
    times = {name: [s.times_ms[name] for s in seen if name in s.times_ms] for name in names}
    early = [each for each in seen if each.due_ns < deadline_ns]
    firsts = [
        min((each.over_ns for each in played if each.on_time), default=0) - played[0].due_ns
        for played in rounds
        if played
    ]
    qualities = [each.quality for each in seen if each.on_time and each.quality == each.quality]
    return Figures(
        offered=len(seen),
        on_time=_share(seen),
        refused=sum(each.refused for each in seen) / max(1, len(seen)),
        quality=float(np.mean(qualities)) if qualities else float("nan"),
        count={name: len(values) for name, values in times.items()},
        p50_ms={name: float(np.percentile(values, 50)) for name, values in times.items()},
        p99_ms={name: float(np.percentile(values, 99)) for name, values in times.items()},
        returned=_share(early),
        return_ms=max(firsts, default=0) / 1e6,
    )


def _share(seen: Sequence[Seen]) -> float:
    return sum(each.on_time for each in seen) / len(seen) if seen else float("nan")


def point(found: Figures) -> dict[str, Any]:
    """JSON values; what is not a number becomes null."""
    flat: dict[str, Any] = {
        "offered": found.offered,
        "on_time": found.on_time,
        "refused": found.refused,
        "quality": found.quality,
        "returned": found.returned,
        "return_ms": found.return_ms,
    }
    for name in found.p99_ms:
        flat |= {
            f"{name}_count": found.count[name],
            f"{name}_p50": found.p50_ms[name],
            f"{name}_p99": found.p99_ms[name],
        }
    return {key: None if value != value else value for key, value in flat.items()}


def summarise(
    played: Mapping[str, Sequence[Sequence[Seen]]], deadline_ns: int, generator: np.random.Generator
) -> dict[str, float]:
    """Each phase's figures by name, and what the flood moved; `played` has the rounds of each.

    `on_time_moved` is the on-time share alone less that beside the flood, `<latency>_p99_ratio` the
    p99 beside the flood over that alone; `..._of_share` the same against the other one's share.
    `..._low` and `..._high` are the ends of a ratio's 95 % interval, for which the generator draws
    rounds. `held` is 1 when nothing was moved against the share by more than the bar allows.
    """
    phases = {name: figures(rounds, deadline_ns) for name, rounds in played.items()}
    summary: dict[str, float] = {}
    for name, found in phases.items():
        for key, value in point(found).items():
            if value is not None:
                summary[f"{name}.{key}"] = value
    flooded = phases[FLOOD]
    for base, suffix in ((ALONE, ""), (SHARE, "_of_share")):
        summary[f"on_time_moved{suffix}"] = phases[base].on_time - flooded.on_time
        for name, value in flooded.p99_ms.items():
            if not phases[base].p99_ms.get(name):
                continue
            key = f"{name}_p99_ratio{suffix}"
            summary[key] = value / phases[base].p99_ms[name]
            before, after = [_times(played[phase], name) for phase in (base, FLOOD)]
            if interval := ratio_interval(before, after, generator):
                summary[f"{key}_low"], summary[f"{key}_high"] = interval
    summary["held"] = float(_held(summary, flooded))
    summary["returned"] = flooded.returned
    summary["return_ms"] = flooded.return_ms
    return summary


def _times(rounds: Sequence[Sequence[Seen]], name: str) -> Times:
    """The latencies of this name by round, those that there were."""
    return [[s.times_ms[name] for s in seen if name in s.times_ms] for seen in rounds]


def _held(summary: dict[str, float], flooded: Figures) -> bool:
    ratios = [summary.get(f"{name}_p99_ratio_of_share") for name in flooded.p99_ms]
    fast = all(ratio is not None and ratio <= P99_RATIO for ratio in ratios)
    return bool(ratios) and fast and summary["on_time_moved_of_share"] <= ON_TIME_MOVED
