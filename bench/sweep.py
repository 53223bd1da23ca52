"""Measures policies against each other on one cluster, at multiples of its own capacity."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bench.load.metrics import LoadResult
from bench.load.plan import LoadPlan, Workload
from bench.load.run import run_load
from deploy.cluster import LocalCluster
from deploy.fleet_views import FleetStatus

Notify = Callable[[str, float, float], None]
"""Called with what is being measured, the seconds so far, and the seconds it takes."""


@dataclass(frozen=True, slots=True)
class SweepSettings:
    """What to run; `load_factors` multiply the measured capacity of the accurate variant.

    `deadline_factor` times the solo p50 of that variant is the deadline of every request.
    """

    model: str
    policies: Sequence[str]
    load_factors: Sequence[float]
    seconds: float = 10.0
    warmup_s: float = 1.0
    deadline_factor: float = 3.0
    solo_s: float = 3.0
    capacity_s: float = 5.0
    in_flight_per_worker: int = 4
    driver_processes: int = 1
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Baseline:
    """What the sweep is scaled by, measured through the full path: ms and requests/s.

    `by_quality` names the model's variants, most accurate first.
    """

    variant: str
    solo_p50_ms: float
    deadline_ms: float
    capacity_per_s: float
    by_quality: Sequence[str]

    @staticmethod
    def read(kept: Mapping[str, Any]) -> Baseline:
        """One that was written with `asdict`."""
        return Baseline(**{**kept, "by_quality": tuple(kept["by_quality"])})


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """One policy at one load."""

    policy: str
    load_factor: float
    rate_per_s: float
    result: LoadResult
    expired_executed: int

    def as_point(self) -> dict[str, Any]:
        """The point as JSON values."""
        return {
            "policy": self.policy,
            "load_factor": self.load_factor,
            "rate_per_s": self.rate_per_s,
            "expired_executed": self.expired_executed,
            **self.result.as_point(),
        }


def most_accurate(status: FleetStatus, model: str) -> str:
    """The routable variant of the highest measured quality; raises ValueError without one."""
    routable = [variant for variant in status.pool(model).variants if variant.routable]
    if not routable:
        raise ValueError(f"no variant of {model} is routable")
    return max(routable, key=lambda variant: variant.quality).name


def measure_baseline(
    cluster: LocalCluster, settings: SweepSettings, workload: Workload, notify: Notify
) -> Baseline:
    """Solo p50 and capacity of the most accurate variant, both through the full path."""
    status = cluster.status()
    variant = most_accurate(status, settings.model)
    ordered = sorted(status.pool(settings.model).variants, key=lambda v: -v.quality)
    plan = LoadPlan(
        target=cluster.address,
        model=settings.model,
        mode="closed",
        concurrency=1,
        duration_s=settings.solo_s,
        warmup_s=0.5,
        variant=variant,
        seed=settings.seed,
    )
    solo = _run(plan, workload, f"solo latency of {variant}", notify)
    in_flight = settings.in_flight_per_worker * len(cluster.worker_names())
    full = replace(plan, concurrency=in_flight, duration_s=settings.capacity_s)
    capacity = _run(full, workload, f"capacity of {variant}", notify)
    if solo.latency is None or not capacity.answered:
        raise ValueError(
            f"no answers of {variant}: {dict(solo.outcomes)}, {dict(capacity.outcomes)}"
        )
    return Baseline(
        variant=variant,
        solo_p50_ms=solo.latency.p50_ms,
        deadline_ms=settings.deadline_factor * solo.latency.p50_ms,
        capacity_per_s=capacity.answered_per_s,
        by_quality=tuple(v.name for v in ordered),
    )


def run_policy(
    cluster: LocalCluster,
    policy: str,
    baseline: Baseline,
    settings: SweepSettings,
    workload: Workload,
    notify: Notify,
) -> list[SweepPoint]:
    """Plays every load under the policy, on a control plane that has seen no traffic before."""
    cluster.restart_controlplane(policy=policy)
    cluster.wait_ready()
    points = []
    for factor in settings.load_factors:
        rate = factor * baseline.capacity_per_s
        plan = LoadPlan(
            target=cluster.address,
            model=settings.model,
            rate_per_s=rate,
            duration_s=settings.seconds,
            warmup_s=settings.warmup_s,
            deadline_ms=baseline.deadline_ms,
            seed=settings.seed,
            watch=cluster.pids(),
        )
        result = _run(
            plan, workload, f"{policy} at {factor:g} x capacity", notify, settings.driver_processes
        )
        status = cluster.status()
        executed = status.expired_work_executed
        points.append(SweepPoint(policy, factor, rate, result, executed))
    return points


def sweep_seconds(settings: SweepSettings) -> float:
    """About how long a sweep takes, for progress bars."""
    runs = len(settings.policies) * len(settings.load_factors)
    return settings.solo_s + settings.capacity_s + 1 + runs * (settings.seconds + settings.warmup_s)


def _run(
    plan: LoadPlan, workload: Workload, what: str, notify: Notify, processes: int = 1
) -> LoadResult:
    total = plan.warmup_s + plan.duration_s
    notify(what, 0.0, total)
    result = run_load(
        plan,
        workload,
        processes=processes,
        on_tick=lambda elapsed: notify(what, min(max(elapsed, 0.0), total), total),
    )
    notify(what, total, total)
    return result
