"""What a clairvoyant could reach: it knows every arrival and every service time.

A near-exact upper estimate, not a theorem. `estimate_bound` pools the capacity of all
workers into one that is as many times as fast, which can only help, but decides on a grid
of backlogs and serves in order of arrival; with unequal deadlines another order may be
better. Its plan is then repaired into a schedule on the real workers, which is a value that
can be reached: the true optimum lies between the two but for the grid.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from bench.sim.answers import Answers
from bench.sim.result import Effort, Ending, Endings, SimResult, reduce
from bench.sim.service import Noise
from bench.sim.tally import rights
from bench.sim.workload import Workload
from controlplane.policy.profiles import VariantTable
from controlplane.policy.records import RequestClass, Shape

_GRID = 600
_DROP = -1
# Requests of the warm-up are worth serving, but not at the cost of one that counts.
_UNCOUNTED = 1e-6
# Time after the last request, in which every backlog drains.
_FOREVER_NS = 1e18


@dataclass(frozen=True, slots=True)
class Bound:
    """`relaxed` is the pooled plan, an upper estimate; `repaired` the same made feasible.

    The accurate goodput of `relaxed` is the plan's worth, its other figures are those of
    playing it.
    """

    relaxed: SimResult
    repaired: SimResult


def estimate_bound(
    workload: Workload,
    table: VariantTable,
    *,
    workers: int,
    trip_ns: int = 0,
    noise: Noise | None = None,
    warmup_s: float = 0.0,
    answers: Answers | None = None,
) -> Bound:
    """The best mean quality over all offered requests, without faults.

    It knows no answers: `answers` only tell how many of its choice are right.

    Dynamic programming from the last arrival to the first over the backlog that an arrival
    finds, `_GRID` steps of the longest deadline with linear interpolation: each request is
    dropped, or adds its own true service on a variant that is on time.
    """
    numbers = table.eligible(
        RequestClass(), {c.tokenizer: Shape.of_lengths([1]) for c in table.candidates}
    )
    quality = np.array([table.candidates[k].quality for k in numbers])
    service = _services(workload, table, numbers, noise or Noise())
    budget = (workload.deadline_ns - workload.arrived_ns - trip_ns).astype(np.float64)
    if workload.reply_ns is not None:
        budget -= workload.reply_ns
    counted = workload.arrived_ns >= int(warmup_s * 1e9)
    plan, worth = _relaxed_plan(workload, service, quality, budget, counted, workers)
    relaxed = _follow(workload, service, budget, plan, workers, pooled=True)
    repaired = _follow(workload, service, budget, plan, workers, pooled=False)
    results = [
        _result(
            workload, table, numbers, service, chosen, done, workers, trip_ns, warmup_s, answers
        )
        for chosen, done in (relaxed, repaired)
    ]
    offered = max(1, results[0].offered)
    return Bound(replace(results[0], accurate_goodput=worth / offered), results[1])


_Floats = NDArray[np.float64]
_Numbers = NDArray[np.int64]


def _services(
    workload: Workload, table: VariantTable, numbers: tuple[int, ...], noise: Noise
) -> _Floats:
    """True service in ns, one row a request, one column a variant."""
    tokens = workload.tokens.tolist()
    luck, tail = workload.luck.tolist(), workload.tail.tolist()
    service = np.empty((len(workload), len(numbers)))
    for column, k in enumerate(numbers):
        candidate = table.candidates[k]
        for row, size in enumerate(tokens):
            nominal = candidate.profile.predict(Shape.of_lengths([size]))
            service[row, column] = nominal * noise.factor(candidate, luck[row], tail[row])
    return service


def _relaxed_plan(
    workload: Workload,
    service: _Floats,
    quality: _Floats,
    budget: _Floats,
    counted: NDArray[np.bool_],
    workers: int,
) -> tuple[NDArray[np.int8], float]:
    """The best choice of every request for every backlog on the grid, and what it is worth.

    `_DROP` drops the request; the worth is the sum of qualities from an empty start.
    """
    count = len(workload)
    grid = np.linspace(0.0, float(budget.max(initial=1.0)), _GRID + 1)
    step = grid[1]
    gaps = np.append(np.diff(workload.arrived_ns).astype(np.float64), _FOREVER_NS)
    value = np.zeros(_GRID + 1)
    plan = np.full((count, _GRID + 1), _DROP, dtype=np.int8)
    for row in range(count - 1, -1, -1):
        best = _interpolate(value, np.maximum(grid - gaps[row], 0.0), step)
        choice = plan[row]
        for column in range(service.shape[1]):
            need = service[row, column]
            after = grid + need / workers
            reached = _interpolate(value, np.maximum(after - gaps[row], 0.0), step)
            reached = reached + quality[column] * (1.0 if counted[row] else _UNCOUNTED)
            # With c workers a request starts once less than the others' work is before it.
            fits = np.maximum(after, need) <= budget[row]
            better = fits & (reached > best)
            best = np.where(better, reached, best)
            choice[better] = column
        value = best
    return plan, float(value[0])


def _interpolate(value: _Floats, at: _Floats, step: float) -> _Floats:
    place = at / step
    low = np.minimum(place.astype(np.int64), len(value) - 2)
    share = np.minimum(place - low, 1.0)
    return np.asarray(value[low] + share * (value[low + 1] - value[low]))


def _follow(
    workload: Workload,
    service: _Floats,
    budget: _Floats,
    plan: NDArray[np.int8],
    workers: int,
    *,
    pooled: bool,
) -> tuple[_Numbers, _Floats]:
    """The plan's choices from an empty start, and how long after arrival each is done.

    On one pooled worker, or as a schedule on the real ones: there a request takes the plan's
    variant for the backlog that it meets, or the best of the faster ones that fits.
    """
    count, columns = service.shape
    chosen = np.full(count, _DROP, dtype=np.int64)
    done = np.zeros(count)
    step = max(1.0, float(budget.max(initial=1.0))) / _GRID
    arrived: list[int] = workload.arrived_ns.tolist()
    speed, servers = (workers, 1) if pooled else (1, workers)
    free = [0.0] * servers
    for row in range(count):
        now = float(arrived[row])
        backlog = sum(max(0.0, at - now) for at in free) / servers
        column = int(plan[row, min(_GRID, round(backlog / step))])
        if column == _DROP:
            continue
        start = max(now, free[0])
        for k in range(column, column + 1 if pooled else columns):
            end = start + service[row, k] / speed
            took = max(end - now, service[row, k])
            if took <= budget[row]:
                heapq.heapreplace(free, end)
                chosen[row], done[row] = k, took
                break
    return chosen, done


def _result(
    workload: Workload,
    table: VariantTable,
    numbers: tuple[int, ...],
    service: _Floats,
    chosen: _Numbers,
    done: _Floats,
    workers: int,
    trip_ns: int,
    warmup_s: float,
    answers: Answers | None,
) -> SimResult:
    answered = chosen != _DROP
    number = np.array([*numbers, -1], dtype=np.int16)
    spent = service[np.flatnonzero(answered), chosen[answered]].sum()
    names = [candidate.name for candidate in table.candidates]
    endings = Endings(
        ending=np.where(answered, Ending.ON_TIME, Ending.REFUSED).astype(np.int8),
        variant=number[chosen],
        done_ns=workload.arrived_ns + np.where(answered, done + trip_ns, 0.0).astype(np.int64),
        answered=answered,
        right=rights(answers, workload, names, number[chosen]),
    )
    return reduce(
        "bound",
        workload.arrived_ns,
        endings,
        names,
        [candidate.quality for candidate in table.candidates],
        Effort(
            busy_ns=int(spent),
            span_ns=int(workload.arrived_ns[-1]) if len(workload) else 0,
            workers=workers,
            runs=(),
            crossed_idle=0,
            expired_executed=0,
        ),
        best=numbers[0],
        from_ns=int(warmup_s * 1e9),
    )
