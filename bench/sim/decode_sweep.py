"""Scheduling policies against each other at multiples of the capacity, on the same arrivals."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import Any

import numpy as np

from bench.sim.decode_workload import (
    GenerationSizes,
    TokenTargets,
    draw_backlog,
    draw_load,
    targets_for,
)
from bench.sim.decode_world import DecodeSimResult, DecodeSimSettings, simulate
from worker.scheduling.cost import StepCost
from worker.scheduling.policies import policy_named
from worker.scheduling.records import SchedulingSettings

POLICIES = (
    "slo",
    "serial",
    "never-evict",
    "preempt",
    "limit-8",
    "limit-8+shed",
    "limit-16",
    "limit-16+shed",
)
LOADS = (0.8, 1.0, 1.3, 1.8)
MEASURED = StepCost(
    step_us=3400.0, prefill_us_per_token=535.0, sequence_us=600.0, cached_us_per_token=1.2
)
"""A language model of 135 M parameters in 4 bits on two threads with AVX-512."""

_BACKLOG = 300
_BACKLOG_POLICY = "limit-8"

Notify = Callable[[str, int, int], None]
"""Called with what is simulated, how many runs are done, and how many there are."""


@dataclass(frozen=True, slots=True)
class DecodeSweep:
    """What to simulate. Loads multiply the capacity; each seed is one load all policies meet.

    Capacity is what a standing backlog completes at width 8 (`limit-8`). Targets of 0 are
    those of `targets_for`. `blocks` of 16 tokens make the arena. Steps take `cost`; `believed` is
    the profile that the scheduler begins with, None the true one.
    """

    policies: Sequence[str] = POLICIES
    loads: Sequence[float] = LOADS
    seconds: float = 300.0
    seeds: Sequence[int] = (1, 2, 3)
    cost: StepCost = MEASURED
    sizes: GenerationSizes = field(default_factory=GenerationSizes)
    first_token_ms: float = 0.0
    token_ms: float = 0.0
    blocks: int = 2048
    sigma: float = 0.05
    believed: StepCost | None = None
    answer_share: float = 1.0


@dataclass(frozen=True, slots=True)
class DecodeScale:
    """What a sweep is scaled by: generations/s, and its targets in ms."""

    capacity_per_s: float
    first_token_ms: float
    token_ms: float


@dataclass(frozen=True, slots=True)
class DecodePoint:
    """One policy at one load; `runs` has one result a seed."""

    policy: str
    load: float
    runs: tuple[DecodeSimResult, ...]

    def mean(self) -> dict[str, float]:
        """Means over the seeds of the figures that every seed has."""
        points = [
            {k: v for k, v in run.as_point().items() if isinstance(v, int | float)}
            for run in self.runs
        ]
        shared = [name for name in points[0] if all(name in point for point in points)]
        return {name: fmean([point[name] for point in points]) for name in shared}

    def spread(self) -> float:
        """Standard error of the mean attainment; 0 for one seed."""
        values = [run.slo_attainment for run in self.runs]
        return stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0

    def as_point(self) -> dict[str, Any]:
        """The point as JSON values."""
        return {
            "policy": self.policy,
            "load_factor": self.load,
            "slo_attainment_stderr": self.spread(),
            "mean": self.mean(),
            "runs": [run.as_point() for run in self.runs],
        }


def settings_of(sweep: DecodeSweep) -> DecodeSimSettings:
    """The simulated worker; its queue has no bound but the targets."""
    context = round(sweep.sizes.prompt[1] + sweep.sizes.answer[1] / sweep.answer_share)
    return DecodeSimSettings(
        scheduling=SchedulingSettings(
            blocks=sweep.blocks,
            context=context,
            max_waiting=1_000_000,
        ),
        cost=sweep.cost,
        sigma=sweep.sigma,
        believed=sweep.believed,
        answer_share=sweep.answer_share,
    )


def scale_of(sweep: DecodeSweep) -> DecodeScale:
    """The capacity of the simulated worker, and the targets."""
    backlog = draw_backlog(np.random.default_rng(0), _BACKLOG, sweep.sizes)
    result = simulate(
        backlog,
        TokenTargets(0, 0),
        policy_named(_BACKLOG_POLICY),
        settings_of(sweep),
        np.random.default_rng(0),
    )
    targets = targets_for(sweep.cost, sweep.sizes)
    return DecodeScale(
        result.per_s,
        sweep.first_token_ms or targets.first_token_ns / 1e6,
        sweep.token_ms or targets.token_ns / 1e6,
    )


def run_sweep(
    sweep: DecodeSweep, scale: DecodeScale, notify: Notify = lambda what, n, of: None
) -> Iterator[DecodePoint]:
    """Simulate every load and policy; ValueError for a policy that does not exist."""
    policies = [policy_named(name) for name in sweep.policies]
    targets = TokenTargets(int(scale.first_token_ms * 1e6), int(scale.token_ms * 1e6))
    settings = settings_of(sweep)
    done, runs = 0, len(sweep.loads) * len(policies)
    for load in sweep.loads:
        rate = load * scale.capacity_per_s
        for policy in policies:
            notify(f"{policy.name} at {load:g}", done, runs)
            yield DecodePoint(
                policy.name,
                load,
                tuple(
                    simulate(
                        draw_load(np.random.default_rng(seed), rate, sweep.seconds, sweep.sizes),
                        targets,
                        policy,
                        settings,
                        np.random.default_rng(seed),
                    )
                    for seed in sweep.seeds
                ),
            )
            done += 1


def summary_of(points: Sequence[DecodePoint]) -> Mapping[str, float]:
    """The flat figures `<policy>@<load>.<figure>`, means over the seeds."""
    figures = (
        "slo_attainment",
        "ttft_p50_ms",
        "ttft_p95_ms",
        "gap_p50_ms",
        "gap_p95_ms",
        "goodput_per_s",
    )
    return {
        f"{point.policy}@{point.load:g}.{name}": mean[name]
        for point in points
        for mean in (point.mean(),)
        for name in figures
        if name in mean
    }
