"""What a simulation found, counted over everything that was offered."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Ending(IntEnum):
    """How a request ended. Every offered one ends in exactly one of these ways."""

    ON_TIME = 0
    LATE = 1
    REFUSED = 2
    SHED = 3
    LOST = 4


@dataclass(frozen=True, slots=True)
class Endings:
    """One row a request of the workload.

    `ending` is an `Ending`; `variant` the number of the answering variant, -1 without an
    answer; `done_ns` when the caller heard; `answered` says whether there was an answer. Where
    recorded answers were played, `worth` is the chance that it is right by the evidence and
    `right` whether it is; `escalated` says that a second variant was asked.
    """

    ending: NDArray[np.int8]
    variant: NDArray[np.int16]
    done_ns: NDArray[np.int64]
    answered: NDArray[np.bool_]
    worth: NDArray[np.float64] | None = None
    right: NDArray[np.bool_] | None = None
    escalated: NDArray[np.bool_] | None = None


@dataclass(frozen=True, slots=True)
class SimResult:
    """One simulated point. Counts and shares are of the requests offered in the window.

    `on_time` is the share answered on time, `on_time_of_admitted` that of those not refused
    at the door, `accurate_goodput` the sum of the answering variants' qualities over all
    offered, `accuracy` the mean quality of on-time answers. `variant_share` is of
    the on-time answers, most accurate variant first. Latencies are of all answers, nan
    without any. `cpu_ms` is worker time spent for each offered request. `worker_spread` is
    the most runs that one worker did over the mean, `crossed_idle` counts runs
    that were sent to a busy worker while another one had nothing to do. Where recorded answers
    were played, `accurate_goodput` and `accuracy` take each answer at what the evidence expects
    of it, and `right_share` counts the right ones over all offered (nan where nobody knows).
    `escalated` is the share of on-time answers for which a second variant was asked.
    """

    policy: str
    offered: int
    on_time_answers: int
    late: int
    refused: int
    shed: int
    lost: int
    on_time: float
    on_time_of_admitted: float
    accurate_goodput: float
    accuracy: float
    variant_share: Mapping[str, float]
    share_most_accurate: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    cpu_ms: float
    utilisation: float
    worker_spread: float
    crossed_idle: int
    expired_executed: int
    right_share: float = math.nan
    escalated: float = 0.0

    def as_point(self) -> dict[str, Any]:
        """The result as JSON values; what is not a number becomes null."""
        return {k: None if v != v else v for k, v in asdict(self).items()}

    def summary(self) -> dict[str, float]:
        """The figures that are compared, without those that are not a number."""
        figures = {
            "accurate_goodput": self.accurate_goodput,
            "goodput": self.on_time,
            "on_time": self.on_time,
            "on_time_of_admitted": self.on_time_of_admitted,
            "accuracy": self.accuracy,
            "share_most_accurate": self.share_most_accurate,
            "p95_ms": self.p95_ms,
            "cpu_cost": self.cpu_ms,
            "right_share": self.right_share,
            "escalated": self.escalated,
        }
        return {name: value for name, value in figures.items() if value == value}


@dataclass(frozen=True, slots=True)
class Effort:
    """What the workers did in a whole run: time in ns, runs by worker, and oddities."""

    busy_ns: int
    span_ns: int
    workers: int
    runs: Sequence[int]
    crossed_idle: int
    expired_executed: int


def reduce(
    policy: str,
    arrived_ns: NDArray[np.int64],
    endings: Endings,
    names: Sequence[str],
    qualities: Sequence[float],
    effort: Effort,
    *,
    best: int = 0,
    from_ns: int = 0,
) -> SimResult:
    """Reduce a run to its figures, over the requests that arrived from `from_ns` on.

    `names` and `qualities` are by variant number, `best` is the most accurate variant that
    is routed to. CPU time counts from the start, because work does not end with its window.
    """
    inside = arrived_ns >= from_ns
    offered = int(inside.sum())
    ending, variant = endings.ending[inside], endings.variant[inside]
    counts = np.bincount(ending, minlength=len(Ending)).tolist()
    good = ending == Ending.ON_TIME
    by_variant = np.bincount(variant[good], minlength=len(names)) if good.any() else None
    right = 0.0 if by_variant is None else float(by_variant @ np.array(qualities))
    if endings.worth is not None:
        right = float(endings.worth[inside][good].sum())
    known = math.nan
    if endings.right is not None:
        known = float(endings.right[inside][good].sum()) / max(1, offered)
    asked = 0.0
    if endings.escalated is not None and good.any():
        asked = float(endings.escalated[inside][good].mean())
    on_time = counts[Ending.ON_TIME]
    admitted = offered - counts[Ending.REFUSED]
    shares = {
        name: 0.0 if by_variant is None else float(by_variant[k]) / on_time
        for k, name in enumerate(names)
    }
    latency = (endings.done_ns - arrived_ns)[inside][endings.answered[inside]] / 1e6
    p50, p95, p99 = (
        (float(v) for v in np.percentile(latency, (50, 95, 99)))
        if len(latency)
        else (float("nan"),) * 3
    )
    runs = np.array(effort.runs, dtype=np.float64)
    return SimResult(
        policy=policy,
        offered=offered,
        on_time_answers=on_time,
        late=counts[Ending.LATE],
        refused=counts[Ending.REFUSED],
        shed=counts[Ending.SHED],
        lost=counts[Ending.LOST],
        on_time=on_time / offered if offered else 0.0,
        on_time_of_admitted=on_time / admitted if admitted else 0.0,
        accurate_goodput=right / offered if offered else 0.0,
        accuracy=right / on_time if on_time else float("nan"),
        variant_share=shares,
        share_most_accurate=shares[names[best]],
        p50_ms=p50,
        p95_ms=p95,
        p99_ms=p99,
        cpu_ms=effort.busy_ns / 1e6 / max(1, len(arrived_ns)),
        utilisation=effort.busy_ns / max(1, effort.span_ns * effort.workers),
        worker_spread=float(runs.max() / runs.mean()) if runs.sum() else 0.0,
        crossed_idle=effort.crossed_idle,
        expired_executed=effort.expired_executed,
        right_share=known,
        escalated=asked,
    )
