"""The demonstration: real sentences, real processes, three policies, four loads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.load.plan import Workload
from bench.report import HostFacts, Report, host_facts, make_report
from bench.sweep import (
    Baseline,
    Notify,
    SweepPoint,
    SweepSettings,
    measure_baseline,
    run_policy,
)
from deploy.cluster import ClusterSpec, LocalCluster
from deploy.readiness import Readiness

POLICIES = ("orchid-cascade", "accurate", "cheap")
LOAD_FACTORS = (0.4, 0.8, 1.2, 2.0)


@dataclass(frozen=True, slots=True)
class DemoRun:
    """Everything a demonstration measured."""

    workers: int
    settings: SweepSettings
    baseline: Baseline
    points: Sequence[SweepPoint]
    host: HostFacts

    def report(self) -> Report:
        """The run in the common result format."""
        return make_report(
            "demo",
            host=self.host,
            settings={
                "workers": self.workers,
                **asdict(self.settings),
                **asdict(self.baseline),
            },
            points=[point.as_point() for point in self.points],
            summary=_summary(self.baseline, self.points),
        )


def run_demo(
    spec: ClusterSpec,
    settings: SweepSettings,
    workload: Workload,
    *,
    notify: Notify,
    on_start: Callable[[Readiness], None],
) -> DemoRun:
    """Starts a cluster, scales the load by what it can do, and plays every policy.

    The workers stay; only the control plane is restarted between policies.
    """
    host = host_facts()
    with LocalCluster(spec) as cluster:
        cluster.wait_ready(timeout_s=300.0, on_progress=on_start)
        baseline = measure_baseline(cluster, settings, workload, notify)
        points = [
            point
            for policy in settings.policies
            for point in run_policy(cluster, policy, baseline, settings, workload, notify)
        ]
    return DemoRun(spec.workers, settings, baseline, points, host)


def demo_spec(directory: Path, workers: int, repository: Path, model: str) -> ClusterSpec:
    """The cluster of a demonstration: free ports, only the demonstrated model."""
    return ClusterSpec(
        workers=workers,
        directory=directory,
        listen="127.0.0.1:0",
        policy=POLICIES[0],
        repository=repository,
        models=(model,),
    )


def _summary(baseline: Baseline, points: Sequence[SweepPoint]) -> dict[str, float]:
    summary = {
        "capacity_per_s": baseline.capacity_per_s,
        "solo_p50_ms": baseline.solo_p50_ms,
        "expired_executed": float(max(point.expired_executed for point in points)),
    }
    for point in points:
        at = f"{point.policy}_{point.load_factor:g}"
        summary[f"on_time_{at}"] = point.result.on_time
        summary[f"right_{at}"] = point.result.right_share
    return summary
