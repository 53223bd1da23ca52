"""A queue flood: many times what can be served, and what becomes of the admitted.

Requests go to a synthetic model of some 60 and 30 ms, at `factor` times the rate that its
workers answer in a closed loop, with a deadline. An honest door refuses most of them at
once and keeps its word to the rest.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from bench.load.metrics import LoadResult
from bench.load.plan import LoadPlan
from bench.load.run import run_load
from bench.report import Report, host_facts, make_report
from bench.workloads import tiny_workload
from deploy.cluster import ClusterSpec, LocalCluster

MODEL = "heavy"
_BUSY = {"tiny-a": 20_000, "tiny-b": 10_000}
_LOOK_S = 0.05


@dataclass(frozen=True, slots=True)
class FloodSettings:
    """`factor` times the capacity of `workers` is offered for `seconds`."""

    workers: int
    factor: float = 10.0
    seconds: float = 10.0
    deadline_ms: float = 500.0
    seed: int = 1


def run_flood(
    settings: FloodSettings, notify: Callable[[str], None] = lambda phase: None
) -> Report:
    """Measures the capacity, then the flood.

    Raises ClusterError or DriverError when a part does not work, ValueError for settings
    that cannot be played.
    """
    from worker.models.synthetic import build_synthetic

    host = host_facts()
    workload = tiny_workload()
    with ExitStack() as stack:
        base = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="orchid-flood-")))
        build_synthetic(base / "models", MODEL, busy=_BUSY)
        spec = ClusterSpec(
            settings.workers,
            base / "state",
            listen="127.0.0.1:0",
            repository=base / "models",
            # Shared runs of this model cost what one does: a flood would raise the capacity.
            controlplane={"max_batch": 1},
        )
        cluster = stack.enter_context(LocalCluster(spec))
        cluster.wait_ready(timeout_s=60)
        notify("measuring the capacity")
        closed = LoadPlan(
            target=cluster.address,
            model=MODEL,
            mode="closed",
            concurrency=4 * settings.workers,
            duration_s=3.0,
            seed=settings.seed,
        )
        capacity = run_load(closed, workload).answered_per_s
        notify(f"flooding with {settings.factor:g} times {capacity:.0f} requests a second")
        open_loop = LoadPlan(
            target=cluster.address,
            model=MODEL,
            rate_per_s=settings.factor * capacity,
            duration_s=settings.seconds,
            deadline_ms=settings.deadline_ms,
            seed=settings.seed,
        )
        with _Watch(cluster) as watch:
            result = run_load(open_loop, workload)
    return make_report(
        "flood",
        host=host,
        settings=asdict(settings),
        points=[result.as_point()],
        summary=_summary(capacity, result, watch),
    )


def _summary(capacity: float, result: LoadResult, watch: _Watch) -> dict[str, float]:
    return {
        "capacity_per_s": capacity,
        "offered_per_s": result.offered_per_s,
        "on_time_of_admitted": result.on_time_of_admitted,
        "on_time_per_s": result.on_time_answers / result.window_s,
        "refused_share": result.refused / result.offered,
        "lost": result.lost,
        "deepest_queue": watch.deepest,
        "controlplane_growth_mib": watch.growth_mib,
    }


class _Watch:
    """The deepest queue and the control plane's growth while a run lasts."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self._process = psutil.Process(cluster.pid("controlplane"))
        self._before = self._process.memory_info().rss
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, name="watch")
        self.deepest = 0
        self.growth_mib = 0.0

    def __enter__(self) -> _Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._ended.wait(_LOOK_S):
            self.deepest = max(self.deepest, self._cluster.status().pool(MODEL).queued)
            grown = self._process.memory_info().rss - self._before
            self.growth_mib = max(self.growth_mib, grown / (1 << 20))
