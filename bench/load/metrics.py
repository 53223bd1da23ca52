"""Offered-based metrics: every request that was due counts, answered or not."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import grpc
import numpy as np
from hdrh.histogram import HdrHistogram
from numpy.typing import NDArray

from bench.load.plan import LoadPlan, Workload
from bench.load.record import CANCELLED_BY_DRIVER, OK, Records
from bench.sim.result import Ending

_LOWEST_US, _HIGHEST_US, _DIGITS = 1, 600_000_000, 3
_CODES = {code.value[0]: code.name for code in grpc.StatusCode}


@dataclass(frozen=True, slots=True)
class Latency:
    """Milliseconds from the scheduled send time; `histogram` is an encoded HdrHistogram (µs)."""

    p50_ms: float
    p90_ms: float
    p95_ms: float
    p99_ms: float
    p999_ms: float
    max_ms: float
    mean_ms: float
    histogram: str


@dataclass(frozen=True, slots=True)
class LoadResult:
    """One measured point; counts and shares are of the requests offered in the window.

    Every offered request ends once: `on_time_answers` came within the deadline of their due
    time (all answers when there is none), `late` were answered or told after it, `refused`
    at the door, `shed` when their turn came, `lost` otherwise (`outcomes` has the statuses).
    `on_time` is the share of the offered answered on time, `on_time_of_admitted` of those
    not refused at the door. `accuracy` is right labels among on-time answers with a known
    label, `right_share` right on-time answers over the offered. `quality` is the mean
    measured quality of the variants that answered on time (of answers of cascades the chance to be
    right that their evidence expects), `accurate_goodput` the sum of those qualities over the
    offered: what `right_share` is expected to be. nan when unknown.

    `variant_share` is of the on-time answers. CPU times are of the measured window;
    `cpu_cost_ms` is the workers' for each offered request. `send_lag_p99_ms` is how late the
    driver itself was: large means it was too slow. `examples` has one message of the server
    for each status that is not OK. `tenants` has offered and on_time by tenant name, `escalated` is
    the share of on-time answers for which a second variant was asked.
    """

    offered: int
    offered_per_s: float
    answered: int
    answered_per_s: float
    on_time_answers: int
    late: int
    refused: int
    shed: int
    lost: int
    on_time: float
    on_time_of_admitted: float
    accuracy: float
    right_share: float
    quality: float
    accurate_goodput: float
    outcomes: Mapping[str, int]
    variant_share: Mapping[str, float]
    latency: Latency | None
    cpu_s: Mapping[str, float]
    cpu_ms_per_request: Mapping[str, float]
    cpu_cost_ms: float
    driver_cpu_ms_per_request: float
    send_lag_p99_ms: float
    window_s: float
    examples: Mapping[str, str]
    tenants: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    escalated: float = 0.0

    def as_point(self) -> dict[str, Any]:
        """The result as JSON values; nan becomes null."""
        return {k: None if v != v else v for k, v in asdict(self).items()}


def measure(plan: LoadPlan, workload: Workload, records: Records) -> LoadResult:
    """Reduces the rows due (open) or ended (closed) inside the measured window."""
    start, end = records.window_ns
    inside = records.window_rows(plan.mode)
    window_s = (end - start) / 1e9
    due, sent, done = (c[inside] for c in (records.due_ns, records.sent_ns, records.done_ns))
    code, text, ending = (c[inside] for c in (records.code, records.text, records.ending))
    answered = code == OK
    on_time = ending == Ending.ON_TIME
    labels = np.array(workload.labels)[text]
    right = on_time & (labels >= 0) & (records.predicted[inside] == labels)
    known = int((on_time & (labels >= 0)).sum())
    offered, good = int(inside.sum()), int(on_time.sum())
    counts = np.bincount(ending, minlength=len(Ending)).tolist()
    quality = float(worth_of(records, workload)[inside][on_time].sum())
    watched = {name: value for name, value in records.cpu_s.items() if name != "driver"}
    workers_s = sum(value for name, value in watched.items() if name.startswith("worker"))
    return LoadResult(
        offered=offered,
        offered_per_s=offered / window_s,
        answered=int(answered.sum()),
        answered_per_s=float(answered.sum()) / window_s,
        on_time_answers=good,
        late=counts[Ending.LATE],
        refused=counts[Ending.REFUSED],
        shed=counts[Ending.SHED],
        lost=counts[Ending.LOST],
        on_time=_share(good, offered),
        on_time_of_admitted=_share(good, offered - counts[Ending.REFUSED]),
        accuracy=_share(int(right.sum()), known) if known else float("nan"),
        right_share=_share(int(right.sum()), offered),
        quality=quality / good if good else float("nan"),
        accurate_goodput=quality / offered if offered else 0.0,
        outcomes=_outcomes(code, answered & ~on_time),
        variant_share=_variant_share(records, inside, on_time),
        latency=_latency((done - due)[answered] / 1e3),
        cpu_s=watched,
        cpu_ms_per_request={n: 1e3 * v / max(1, offered) for n, v in watched.items()},
        cpu_cost_ms=1e3 * workers_s / max(1, offered),
        driver_cpu_ms_per_request=1e3 * records.cpu_s["driver"] / max(1, offered),
        send_lag_p99_ms=float(np.percentile((sent - due) / 1e6, 99)) if offered else 0.0,
        window_s=window_s,
        examples={_code_name(code): text for code, text in records.examples.items()},
        tenants=_tenants(plan, records.tenant[inside], on_time),
        escalated=_share(_escalated(records, inside, on_time), good),
    )


def worth_of(records: Records, workload: Workload) -> NDArray[np.float64]:
    """What each answer is expected to be right; nan without an answer and when nobody knows.

    That is the quality of the answering variant, or what the evidence of a cascade expects.
    """
    of = np.array(
        [workload.qualities.get(name, math.nan) for name in records.variants] + [math.nan]
    )
    worth: NDArray[np.float64] = of[records.variant]
    if records.expected is None:
        return worth
    return np.where(np.isnan(records.expected), worth, records.expected)


def _escalated(
    records: Records, inside: np.ndarray[Any, Any], on_time: np.ndarray[Any, Any]
) -> int:
    if records.escalated is None:
        return 0
    return int(records.escalated[inside][on_time].sum())


def _tenants(
    plan: LoadPlan, tenant: np.ndarray[Any, Any], on_time: np.ndarray[Any, Any]
) -> dict[str, dict[str, float]]:
    found = {}
    for number, who in enumerate(plan.tenants):
        mine = tenant == number
        count = int(mine.sum())
        found[who.name] = {"offered": count, "on_time": _share(int(on_time[mine].sum()), count)}
    return found


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def _outcomes(code: np.ndarray[Any, Any], late: np.ndarray[Any, Any]) -> dict[str, int]:
    """Counts by status name; an answer after its deadline is "LATE", not "OK"."""
    values, counts = np.unique(code[~late], return_counts=True)
    named = {_code_name(int(v)): int(n) for v, n in zip(values, counts, strict=True)}
    if late.any():
        named["LATE"] = int(late.sum())
    return named


def _code_name(code: int) -> str:
    return "NO_ANSWER" if code == CANCELLED_BY_DRIVER else _CODES.get(code, str(code))


def _variant_share(
    records: Records, inside: np.ndarray[Any, Any], on_time: np.ndarray[Any, Any]
) -> dict[str, float]:
    chosen = records.variant[inside][on_time]
    chosen = chosen[chosen >= 0]
    return {
        name: float((chosen == index).mean()) if len(chosen) else 0.0
        for index, name in enumerate(records.variants)
    }


def _latency(values_us: np.ndarray[Any, Any]) -> Latency | None:
    if not len(values_us):
        return None
    histogram = HdrHistogram(_LOWEST_US, _HIGHEST_US, _DIGITS)
    for value in values_us:
        histogram.record_value(min(_HIGHEST_US, max(_LOWEST_US, round(value))))
    at = {q: histogram.get_value_at_percentile(q) / 1e3 for q in (50, 90, 95, 99, 99.9, 100)}
    return Latency(
        p50_ms=at[50],
        p90_ms=at[90],
        p95_ms=at[95],
        p99_ms=at[99],
        p999_ms=at[99.9],
        max_ms=at[100],
        mean_ms=float(values_us.mean()) / 1e3,
        histogram=histogram.encode().decode(),
    )
