"""The simulator and the clairvoyant bound on the traffic that live policies met.

Arrivals, texts' lengths and deadlines are the live run's own. Services are those of the served
profiles times the ratios measured in the reference policy's live runs at the same load, and
message times are measured there too; nothing else is fitted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from bench.compare.settings import BOUND, REFERENCE, CompareSettings, Job
from bench.load.plan import Workload as Texts
from bench.load.schedule import draw_schedule
from bench.sim.bound import estimate_bound
from bench.sim.calibration import Calibration, pooled
from bench.sim.model import SimModel
from bench.sim.service import Faults
from bench.sim.workload import Workload
from bench.sim.world import SimSettings, simulate
from bench.sweep import Baseline

Point = dict[str, Any]


def calibration_at(points: Sequence[Point], load: float) -> Calibration | None:
    """What the reference policy's live runs at a load measured; None when there are none."""
    parts = [
        Calibration.from_point(point["calibration"])
        for point in points
        if point["policy"] == REFERENCE and point["load_factor"] == load and point["calibration"]
    ]
    return pooled(parts)


def recorded_workload(
    settings: CompareSettings, job: Job, baseline: Baseline, texts: Texts, front_ns: int
) -> Workload:
    """The traffic of a job for the simulator; what callers lose before and after the server
    is taken off their time.
    """
    schedule = draw_schedule(settings.plan(job, baseline), texts)
    generator = np.random.default_rng((job.seed, 1))
    count = len(schedule.due_ns)
    budget = np.maximum(1, schedule.budget_ns - front_ns)
    return Workload(
        arrived_ns=schedule.due_ns,
        tokens=np.array(texts.tokens, np.int64)[schedule.text],
        deadline_ns=schedule.due_ns + budget,
        luck=generator.standard_normal(count),
        tail=generator.random(count),
    )


def deployment(settings: CompareSettings, calibration: Calibration, policy: str) -> SimSettings:
    """The simulated cluster that stands for the live one."""
    return SimSettings(
        workers=settings.workers,
        policy=policy,
        trip_ns=calibration.trip_ns,
        warmup_s=settings.warmup_s,
        noise=calibration.noise(),
    )


def simulate_job(
    settings: CompareSettings,
    job: Job,
    baseline: Baseline,
    texts: Texts,
    served: SimModel,
    calibration: Calibration,
    faults: Faults | None = None,
) -> Point:
    """One simulated run or bound, as a point; `job.policy` is the simulated policy."""
    workload = recorded_workload(settings, job, baseline, texts, calibration.front_ns)
    table = served.table()
    world = deployment(settings, calibration, REFERENCE if job.policy == BOUND else job.policy)
    extra: dict[str, Any] = {}
    if job.policy == BOUND:
        bound = estimate_bound(
            workload,
            table,
            workers=world.workers,
            trip_ns=world.trip_ns,
            noise=world.noise,
            warmup_s=world.warmup_s,
        )
        result = bound.relaxed
        extra["achievable"] = bound.repaired.accurate_goodput
    else:
        result = simulate(workload, table, replace(world, faults=faults or Faults()))
    point = result.as_point()
    if point["p95_ms"] is not None:
        point["p95_ms"] += calibration.front_ns / 1e6
    name = BOUND if job.policy == BOUND else f"sim-{job.policy}"
    return {
        **point,
        "policy": name,
        "load_factor": job.load,
        "seed": job.seed,
        "kind": "simulated",
        **extra,
    }
