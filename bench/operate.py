"""What callers notice while workers are killed, drained and replaced under load.

A supervised local cluster answers open-loop traffic at a share of its measured capacity. A
third into the run something is done to its workers; every request that was due is followed to
its end, and the cluster until it is whole again.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bench.compare.timeline import recovery, timeline
from bench.load.metrics import LoadResult, measure
from bench.load.plan import LoadPlan, Workload
from bench.load.record import Records
from bench.load.run import run_records
from bench.report import HostFacts, Report, commit, host_facts, make_report, read_report
from bench.secured import rotate
from bench.sim.result import Ending
from bench.sweep import Baseline, Notify, SweepSettings, measure_baseline
from deploy.cluster import ClusterError, LocalCluster
from deploy.fleet import drain_worker
from deploy.roll import roll_workers

Point = dict[str, Any]

# The event that needs a cluster with certificates.
ROTATE = "rotate"
_POLL_S = 0.05
_DRAIN_S = 10.0
_REPLACED_S = 60.0
# Another control plane, the driver's start and end, besides the traffic.
_OVERHEAD_S = 3.0


@dataclass(frozen=True, slots=True)
class OperateSettings:
    """`load` multiplies the capacity of the most accurate variant, measured first.

    Every request may take `deadline_factor` times what that variant takes alone (median).
    `variants` empty loads all of the model's.
    """

    model: str
    workers: int
    load: float = 0.7
    seconds: float = 30.0
    warmup_s: float = 2.0
    deadline_factor: float = 3.0
    variants: tuple[str, ...] = ()
    solo_s: float = 3.0
    capacity_s: float = 6.0
    seed: int = 1

    @property
    def begin_s(self) -> float:
        """When the event happens, in seconds from the start of a run."""
        return self.warmup_s + self.seconds / 5.0


class StoredOtherwiseError(Exception):
    """The file holds points of other settings or another commit; the text says which."""


@dataclass(frozen=True, slots=True)
class Kept:
    """What a file has already: the baseline everything is scaled by, and points by event."""

    host: HostFacts
    baseline: Baseline | None = None
    points: tuple[Point, ...] = ()


def read_kept(path: Path, settings: OperateSettings) -> Kept:
    """The points of a file that these settings measured; raises StoredOtherwiseError."""
    if not path.exists():
        return Kept(host_facts())
    report = read_report(path)
    wanted = json.loads(json.dumps(asdict(settings)))
    differing = [key for key in wanted if report.settings.get(key) != wanted[key]]
    if report.bench != "operate" or differing:
        raise StoredOtherwiseError(
            f"{path} was measured with other {', '.join(differing) or 'commands'}"
        )
    if report.commit != commit():
        raise StoredOtherwiseError(f"{path} was measured at commit {report.commit}")
    known = report.settings["baseline"]
    baseline = Baseline.read(known)
    return Kept(report.host, baseline, tuple(dict(point) for point in report.points))


class Operation:
    """One event done to a live cluster beside its traffic; `start` is called once."""

    def __init__(self, name: str, cluster: LocalCluster) -> None:
        self._act = EVENTS[name]
        self._cluster = cluster
        self._thread = threading.Thread(target=self._run, name=name)
        self._began_s = 0.0
        self._fault = ""
        self._whole_s: float | None = None

    def start(self) -> None:
        """Begins, on a thread of its own."""
        self._began_s = time.monotonic()
        self._thread.start()

    def _run(self) -> None:
        try:
            self._act(self._cluster)
            self._cluster.wait_ready(timeout_s=_REPLACED_S)
        except Exception as error:
            self._fault = f"{type(error).__name__}: {error}"
        else:
            self._whole_s = time.monotonic() - self._began_s

    def finish(self) -> float:
        """Seconds from the event until every worker served again; raises ClusterError."""
        if self._began_s:
            self._thread.join()
        if self._whole_s is None:
            raise ClusterError(self._fault or "the run ended before its event")
        return self._whole_s


def kill_one(cluster: LocalCluster) -> None:
    """SIGKILL to a worker, which its supervisor replaces."""
    name = cluster.worker_names()[0]
    before = cluster.pid(name)
    cluster.kill_worker(name)
    _await_replaced(cluster, name, before)


def drain_one(cluster: LocalCluster) -> None:
    """A worker is told to finish what it has and to go; its supervisor replaces it."""
    name = cluster.worker_names()[0]
    before = cluster.pid(name)
    drain_worker(cluster.worker_address(name), timeout_s=_DRAIN_S, leave=True)
    _await_replaced(cluster, name, before)


def roll_all(cluster: LocalCluster) -> None:
    """Every worker is replaced, as by `orchid roll`."""
    roll_workers(cluster)


def rotate_all(cluster: LocalCluster) -> None:
    """The certificate of every process is exchanged, and every worker replaced, which shows it."""
    if cluster.spec.config is None:
        raise ClusterError("there is no certificate to exchange")
    rotate(cluster.spec.config)
    roll_workers(cluster)


def _await_replaced(cluster: LocalCluster, name: str, before: int) -> None:
    deadline = time.monotonic() + _REPLACED_S
    while cluster.pid(name) == before:
        if time.monotonic() >= deadline:
            raise ClusterError(f"{name} was not replaced within {_REPLACED_S:.0f} s")
        time.sleep(_POLL_S)


EVENTS: Mapping[str, Callable[[LocalCluster], None]] = {
    "kill": kill_one,
    "drain": drain_one,
    "roll": roll_all,
    ROTATE: rotate_all,
}


def seconds_left(settings: OperateSettings, kept: Kept, events: Sequence[str]) -> float:
    """About how long the rest takes."""
    first_s = 0.0 if kept.baseline else settings.solo_s + settings.capacity_s + 1.0
    return first_s + len(events) * (settings.seconds + settings.warmup_s + _OVERHEAD_S)


def run_operate(
    cluster: LocalCluster,
    settings: OperateSettings,
    workload: Workload,
    kept: Kept,
    event: str,
    notify: Notify,
) -> Kept:
    """Does an event to a supervised, ready cluster under traffic; its point joins those kept.

    Raises ClusterError or DriverError when a part does not work.
    """
    baseline = kept.baseline or measure_baseline(
        cluster,
        SweepSettings(
            model=settings.model,
            policies=(),
            load_factors=(settings.load,),
            deadline_factor=settings.deadline_factor,
            solo_s=settings.solo_s,
            capacity_s=settings.capacity_s,
            seed=settings.seed,
        ),
        workload,
        notify,
    )
    others = [point for point in kept.points if point["event"] != event]
    point = _run(cluster, settings, workload, baseline, event, notify)
    return replace(kept, baseline=baseline, points=(*others, point))


def _run(
    cluster: LocalCluster,
    settings: OperateSettings,
    workload: Workload,
    baseline: Baseline,
    event: str,
    notify: Notify,
) -> Point:
    total = settings.seconds + settings.warmup_s + _OVERHEAD_S
    notify(event, 0.0, total)
    # What one event taught the policy is not what the next begins with.
    cluster.restart_controlplane()
    before = cluster.wait_ready()
    plan = LoadPlan(
        target=cluster.address,
        model=settings.model,
        rate_per_s=settings.load * baseline.capacity_per_s,
        duration_s=settings.seconds,
        warmup_s=settings.warmup_s,
        deadline_ms=baseline.deadline_ms,
        seed=settings.seed,
        watch=cluster.pids(),
    )
    operation = Operation(event, cluster)
    records = run_records(
        plan,
        workload,
        on_tick=lambda elapsed: notify(event, min(max(elapsed, 0.01), total * 0.99), total),
        events=((settings.begin_s, operation.start),),
    )
    whole_s = operation.finish()
    executed = cluster.status().expired_work_executed - before.expired_work_executed
    notify(event, total, total)
    return {
        **point_of(event, settings, records, measure(plan, workload, records), whole_s),
        "rate_per_s": plan.rate_per_s,
        "deadline_ms": plan.deadline_ms,
        "expired_executed": max(0, executed),
    }


def point_of(
    event: str, settings: OperateSettings, records: Records, result: LoadResult, whole_s: float
) -> Point:
    """One event's figures: the whole window's, and those from the event to its end.

    `whole_s` is how long after the event every worker served again, `on_time_recovery_s` how long
    the share on time was down (0: it never was; null: until the run ended).
    """
    span_s = settings.warmup_s + settings.seconds
    on_time = records.ending == Ending.ON_TIME
    line = timeline(records.due_ns, on_time, np.ones(len(on_time)), span_s)
    end_s = min(span_s, settings.begin_s + whole_s)
    found = recovery(line, settings.warmup_s, settings.begin_s, end_s)
    return {
        "event": event,
        "begin_s": settings.begin_s,
        "whole_s": whole_s,
        "within_run": settings.begin_s + whole_s <= span_s,
        "on_time_before": found.before.on_time,
        "on_time_during": found.during.on_time,
        "on_time_lowest": found.lowest,
        "on_time_recovery_s": found.recovery_s,
        "timeline": line.as_point(),
        **result.as_point(),
    }


def operate_report(settings: OperateSettings, kept: Kept) -> Report:
    """Everything so far; `<event>.` lost, late, refused, shed, on_time, on_time_during, whole_s
    and recovery_s, which is the rest of the run when no recovery was seen.
    """
    assert kept.baseline is not None
    summary = {
        "capacity_per_s": kept.baseline.capacity_per_s,
        "deadline_ms": kept.baseline.deadline_ms,
        "lost": float(sum(point["lost"] for point in kept.points)),
        "on_time": float(min((point["on_time"] for point in kept.points), default=1.0)),
        "expired_executed": float(sum(point["expired_executed"] for point in kept.points)),
    }
    rest_s = settings.seconds + settings.warmup_s - settings.begin_s
    for point in kept.points:
        event = point["event"]
        names = ("offered", "lost", "late", "refused", "shed", "on_time", "on_time_during")
        summary |= {f"{event}.{name}": float(point[name]) for name in (*names, "whole_s")}
        back = point["on_time_recovery_s"]
        summary[f"{event}.recovery_s"] = rest_s if back is None else float(back)
    return make_report(
        "operate",
        host=kept.host,
        settings={**asdict(settings), "baseline": asdict(kept.baseline)},
        points=kept.points,
        summary=summary,
    )
