"""The simulator and the clairvoyant bound on the traffic that live policies met.

Arrivals, texts' lengths and deadlines are the live run's own. Services are those of the served
profiles times the ratios measured in the reference policy's live runs at the same load, slow
together as they were there, and message times are measured there too; nothing else is fitted. Where
every variant's answers to the texts were recorded, requests are answered like that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bench.compare.settings import BOUND, REFERENCE, CompareSettings, Job
from bench.load.plan import Workload as Texts
from bench.load.schedule import draw_schedule
from bench.sim.answers import Answers
from bench.sim.bound import estimate_bound
from bench.sim.calibration import Calibration, pooled
from bench.sim.model import SimModel
from bench.sim.result import Endings, SimResult
from bench.sim.service import Faults
from bench.sim.workload import Workload
from bench.sim.world import SimSettings, World
from bench.sweep import Baseline
from controlplane.config import ControlPlaneConfig

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
    settings: CompareSettings,
    job: Job,
    baseline: Baseline,
    texts: Texts,
    measured: Calibration,
    answers: Answers | None = None,
) -> Workload:
    """The traffic of a job for the simulator, with luck and lost time as measured.

    The control plane knows a deadline as time left when a request was sent, so what requests
    and answers take on the way is lost to callers without its knowing.
    """
    schedule = draw_schedule(settings.plan(job, baseline), texts)
    generator = np.random.default_rng((job.seed, 1))
    count = len(schedule.due_ns)
    budget = np.maximum(1, schedule.budget_ns - measured.lag_ns)
    return Workload(
        arrived_ns=schedule.due_ns,
        tokens=np.array(texts.tokens, np.int64)[schedule.text],
        deadline_ns=schedule.due_ns + budget,
        luck=measured.luck(generator, schedule.due_ns),
        tail=generator.random(count),
        reply_ns=measured.hops(generator, count),
        item=None if answers is None else schedule.text.astype(np.int32),
    )


def deployment(settings: CompareSettings, calibration: Calibration, policy: str) -> SimSettings:
    """The simulated cluster that stands for the live one."""
    return SimSettings(
        workers=settings.workers,
        policy=policy,
        trip_ns=calibration.trip_ns,
        response_ns=int(ControlPlaneConfig().response_reserve_ms * 1e6),
        warmup_s=settings.warmup_s,
        noise=calibration.noise(),
    )


@dataclass(frozen=True, slots=True)
class Played:
    """A simulated run: its point, the traffic, and how each request ended."""

    point: Point
    workload: Workload
    endings: Endings


def simulate_job(
    settings: CompareSettings,
    job: Job,
    baseline: Baseline,
    texts: Texts,
    served: SimModel,
    calibration: Calibration,
    faults: Faults | None = None,
    answers: Answers | None = None,
) -> Played:
    """Simulates the policy of a job on its live traffic; the point's policy is `sim-...`."""
    workload = recorded_workload(settings, job, baseline, texts, calibration, answers)
    deployed = deployment(settings, calibration, job.policy)
    settings_of_world = replace(deployed, faults=faults or Faults())
    world = World(workload, served.table(), settings_of_world, answers)
    point = _point(world.run(), f"sim-{job.policy}", job, calibration)
    return Played(point, workload, world.endings())


def bound_job(
    settings: CompareSettings,
    job: Job,
    baseline: Baseline,
    texts: Texts,
    served: SimModel,
    calibration: Calibration,
    answers: Answers | None = None,
) -> Point:
    """The clairvoyant bound on the live traffic of a load and seed, as a point."""
    workload = recorded_workload(settings, job, baseline, texts, calibration, answers)
    bound = estimate_bound(
        workload,
        served.table(),
        workers=settings.workers,
        trip_ns=calibration.trip_ns,
        noise=calibration.noise(),
        warmup_s=settings.warmup_s,
        answers=answers,
    )
    point = _point(bound.relaxed, BOUND, job, calibration)
    return {**point, "achievable": bound.repaired.accurate_goodput}


def _point(result: SimResult, policy: str, job: Job, calibration: Calibration) -> Point:
    point = result.as_point()
    if point["p95_ms"] is not None:
        # Live latency counts from the caller's due time.
        point["p95_ms"] += calibration.front_ns / 1e6
    place = {"load_factor": job.load, "seed": job.seed, "kind": "simulated"}
    return {**point, **place, "policy": policy}
