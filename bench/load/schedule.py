"""When which request is due: drawn once for a run, then shared out to its driver processes.

The arrival processes are the simulator's own, so a live run and a simulated one can be
given the very same traffic.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.load.plan import LoadPlan, Workload
from bench.sim.arrivals import process
from bench.sim.workload import read_trace, retimed

_CLOSED_DRAWS = 65536


@dataclass(frozen=True, slots=True)
class Schedule:
    """One row a request in order of due time; ns after the start.

    `text` indexes the workload's texts, `budget_ns` is the time an answer is worth waiting
    for from the due time (0: no deadline), `tenant` indexes the plan's tenants. A closed loop
    has no due times; its other columns are taken in turn.
    """

    due_ns: NDArray[np.int64]
    text: NDArray[np.int64]
    budget_ns: NDArray[np.int64]
    tenant: NDArray[np.int64]

    def shard(self, number: int, of: int) -> Schedule:
        """Every `of`-th row from row `number` on: one driver process's share."""
        rows = slice(number, None, of)
        return Schedule(*(getattr(self, name)[rows] for name in _COLUMNS))


_COLUMNS = ("due_ns", "text", "budget_ns", "tenant")


def draw_schedule(plan: LoadPlan, workload: Workload) -> Schedule:
    """The requests of a plan; one seed gives one schedule. Raises ValueError or OSError."""
    generator = np.random.default_rng(plan.seed)
    span_s = plan.warmup_s + plan.duration_s
    if plan.mode == "closed":
        due = np.empty(0, np.int64)
    elif plan.arrivals == "trace":
        return _of_trace(plan, workload, generator, span_s)
    else:
        times = process(plan.arrivals, plan.rate_per_s, span_s).times_s(generator, span_s)
        due = (times * 1e9).astype(np.int64)
    rows = len(due) if plan.mode == "open" else _CLOSED_DRAWS
    text = generator.integers(0, len(workload.texts), rows)
    factor = generator.choice(np.array(plan.deadline_factors), rows)
    budget = (plan.deadline_ms * 1e6 * factor).astype(np.int64)
    return Schedule(due, text, budget, _tenants(plan, generator, rows))


def _tenants(plan: LoadPlan, generator: np.random.Generator, rows: int) -> NDArray[np.int64]:
    weights = np.array([tenant.weight for tenant in plan.tenants] or [1.0])
    return generator.choice(len(weights), rows, p=weights / weights.sum())


def _of_trace(
    plan: LoadPlan, workload: Workload, generator: np.random.Generator, span_s: float
) -> Schedule:
    """A recorded trace's times and deadlines, with texts as long as the recorded ones."""
    recorded = retimed(read_trace(Path(plan.trace), generator), deadline_ms=plan.deadline_ms)
    inside = recorded.arrived_ns < int(span_s * 1e9)
    due = recorded.arrived_ns[inside]
    if not len(due):
        raise ValueError(f"{plan.trace}: nothing arrives in the first {span_s:g} s")
    return Schedule(
        due_ns=due,
        text=_texts_of_length(workload, recorded.tokens[inside], generator),
        budget_ns=(recorded.deadline_ns - recorded.arrived_ns)[inside],
        tenant=_tenants(plan, generator, len(due)),
    )


def _texts_of_length(
    workload: Workload, tokens: NDArray[np.int64], generator: np.random.Generator
) -> NDArray[np.int64]:
    """For each length one of the texts that are nearest to it, drawn among equals."""
    if not workload.tokens:
        raise ValueError("the lengths of the texts are not known, so no trace can be played")
    have = np.array(workload.tokens)
    chosen = np.empty(len(tokens), np.int64)
    for length in np.unique(tokens):
        off = np.abs(have - length)
        rows = tokens == length
        chosen[rows] = generator.choice(np.flatnonzero(off == off.min()), int(rows.sum()))
    return chosen


def save_schedule(path: Path, schedule: Schedule) -> None:
    """Writes one .npz file."""
    with path.open("wb") as file:
        np.savez(
            file,
            due_ns=schedule.due_ns,
            text=schedule.text,
            budget_ns=schedule.budget_ns,
            tenant=schedule.tenant,
        )


def load_schedule(path: Path) -> Schedule:
    """Reads what `save_schedule` wrote."""
    with np.load(path) as data:
        return Schedule(*(data[name] for name in _COLUMNS))
