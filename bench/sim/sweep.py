"""Policies against each other at multiples of the capacity, on the same arrivals and services."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np

from bench.sim.answers import Answers
from bench.sim.arrivals import process
from bench.sim.bound import estimate_bound
from bench.sim.model import SimModel, mean_service_ns, routable
from bench.sim.result import SimResult
from bench.sim.workload import (
    REVIEW_LENGTHS,
    Deadlines,
    Lengths,
    SampledLengths,
    Workload,
    draw_workload,
    of_items,
    read_trace,
    retimed,
)
from bench.sim.world import SimSettings, simulate

POLICIES = (
    "orchid",
    "price",
    "accurate",
    "cheap",
    "published-accurate",
    "published-adaptive",
    "early",
)
BOUND = "bound"
LOADS = (0.4, 0.6, 0.8, 0.95, 1.1, 1.3, 2.0, 3.0)

Notify = Callable[[str, int, int], None]
"""Called with what is simulated, how many runs are done, and how many there are."""


@dataclass(frozen=True, slots=True)
class SimSweep:
    """What to simulate. Loads multiply the capacity of the most accurate routable variant.

    Capacity is workers over its mean nominal service for these lengths. `deadline_ms` 0
    takes three of that variant's services. `deadline_factors` mixes deadlines. Each seed is
    one workload that all policies meet. `deployment` says everything else; its
    policy is ignored. A `trace` brings its own arrivals, lengths and deadlines: loads are
    then how many times as fast it is played, and seeds draw the services only. With `answers`
    requests are items drawn from those, of their lengths too.
    """

    model: SimModel
    policies: Sequence[str] = (*POLICIES, BOUND)
    loads: Sequence[float] = LOADS
    arrivals: str = "poisson"
    seconds: float = 20.0
    seeds: Sequence[int] = (1, 2, 3)
    deadline_ms: float = 0.0
    deadline_factors: tuple[float, ...] = (1.0,)
    lengths: Lengths = REVIEW_LENGTHS
    only: tuple[str, ...] = ()
    trace: Path | None = None
    answers: Answers | None = None
    deployment: SimSettings = field(default_factory=SimSettings)


@dataclass(frozen=True, slots=True)
class SimScale:
    """What a sweep is scaled by: ms and requests/s, and the routable variants."""

    variant: str
    service_ms: float
    deadline_ms: float
    capacity_per_s: float
    by_quality: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SimPoint:
    """One policy at one load; `runs` has one result a seed, `achievable` is the bound's own."""

    policy: str
    load: float
    runs: tuple[SimResult, ...]
    achievable: tuple[float, ...] = ()

    def mean(self) -> dict[str, float]:
        """Means over the seeds of what every seed has."""
        summaries = [result.summary() for result in self.runs]
        names = [name for name in summaries[0] if all(name in s for s in summaries)]
        figures = {name: fmean([s[name] for s in summaries]) for name in names}
        if self.achievable:
            figures["achievable"] = fmean(self.achievable)
        return figures

    def spread(self) -> float:
        """Standard error of the mean accurate goodput; 0 for one seed."""
        values = [result.accurate_goodput for result in self.runs]
        return stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0

    def as_point(self) -> dict[str, Any]:
        """The point as JSON values."""
        return {
            "policy": self.policy,
            "load_factor": self.load,
            "accurate_goodput_stderr": self.spread(),
            "mean": self.mean(),
            "runs": [result.as_point() for result in self.runs],
        }


def scale_of(sweep: SimSweep) -> SimScale:
    """Capacity and deadline that the sweep's loads and slacks refer to."""
    variants = routable(sweep.model.table(sweep.only))
    lengths = sweep.lengths
    if sweep.answers is not None:
        lengths = SampledLengths(tuple(sweep.answers.tokens.tolist()))
    service = mean_service_ns(variants[0], lengths)
    return SimScale(
        variant=variants[0].name,
        service_ms=service / 1e6,
        deadline_ms=sweep.deadline_ms or 3.0 * service / 1e6,
        capacity_per_s=sweep.deployment.workers * 1e9 / service,
        by_quality=tuple(candidate.name for candidate in variants),
    )


def workload_of(sweep: SimSweep, scale: SimScale, load: float, seed: int) -> Workload:
    """The workload that every policy meets at this load and seed."""
    if sweep.trace is not None:
        recorded = read_trace(sweep.trace, np.random.default_rng(seed))
        return retimed(recorded, speed=load, deadline_ms=sweep.deadline_ms)
    workload = draw_workload(
        np.random.default_rng(seed),
        process(sweep.arrivals, load * scale.capacity_per_s, sweep.seconds),
        sweep.lengths,
        Deadlines(scale.deadline_ms, sweep.deadline_factors),
        sweep.seconds,
    )
    if sweep.answers is not None:
        generator = np.random.default_rng((seed, 2))
        workload = of_items(workload, generator, sweep.answers.tokens)
    return workload


def run_sweep(sweep: SimSweep, notify: Notify = lambda what, n, of: None) -> Iterator[SimPoint]:
    """Simulate every load and policy; raises ValueError for a bound of a world with faults."""
    scale = scale_of(sweep)
    if BOUND in sweep.policies and sweep.deployment.faults:
        raise ValueError("the bound knows no faults; leave it out of the policies")
    done, runs = 0, len(sweep.loads) * len(sweep.policies)
    for load in sweep.loads:
        workloads = [workload_of(sweep, scale, load, seed) for seed in sweep.seeds]
        for policy in sweep.policies:
            notify(f"{policy} at {load:g}", done, runs)
            yield run_point(sweep, policy, load, workloads)
            done += 1


def run_point(sweep: SimSweep, policy: str, load: float, workloads: Sequence[Workload]) -> SimPoint:
    """One policy on these workloads."""
    table = sweep.model.table(sweep.only)
    settings = replace(sweep.deployment, policy="orchid" if policy == BOUND else policy)
    if policy != BOUND:
        runs = tuple(simulate(w, table, settings, sweep.answers) for w in workloads)
        return SimPoint(policy, load, runs)
    bounds = [
        estimate_bound(
            workload,
            table,
            workers=settings.workers,
            trip_ns=settings.trip_ns,
            noise=settings.noise,
            warmup_s=settings.warmup_s,
            answers=sweep.answers,
        )
        for workload in workloads
    ]
    return SimPoint(
        policy,
        load,
        tuple(bound.relaxed for bound in bounds),
        tuple(bound.repaired.accurate_goodput for bound in bounds),
    )


def summary_of(points: Sequence[SimPoint], prefix: str = "") -> Mapping[str, float]:
    """The flat figures `<prefix><policy>@<load>.<figure>`, means over the seeds."""
    return {
        f"{prefix}{point.policy}@{point.load:g}.{name}": value
        for point in points
        for name, value in point.mean().items()
    }
