"""Traffic and misfortunes that policies are tried with, live and simulated."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.compare.figures import cells
from bench.compare.hog import Hog
from bench.compare.settings import CompareSettings, Job
from bench.compare.simulated import Played, bound_job, calibration_at, simulate_job
from bench.compare.store import Store
from bench.compare.timeline import Recovery, Timeline, recovery, summed, timeline
from bench.load.plan import Process, Workload
from bench.load.processes import Event
from bench.load.record import Records
from bench.sim.model import SimModel
from bench.sim.result import Ending
from bench.sim.service import Faults, SlowDown, WorkerLoss
from bench.sweep import Baseline
from deploy.cluster import LocalCluster
from deploy.fleet import FleetError

Point = dict[str, Any]

HOG_SHARE = 0.5
_DETECTED_S = 0.05
_PROBE_S = 0.5


@dataclass(frozen=True, slots=True)
class Scenario:
    """What a scenario changes of a comparison.

    Its disturbance begins after a third of the run and lasts `lasts_s`, at most the share
    `at_most` of the run; None means that there is no disturbance.
    """

    what: str
    arrivals: Process = "poisson"
    deadline_mix: tuple[float, ...] = (1.0,)
    lasts_s: float | None = None
    at_most: float = 1.0 / 3.0
    seconds: float = 30.0


SCENARIOS: Mapping[str, Scenario] = {
    "mmpp": Scenario("bursts: quiet and busy phases (Markov-modulated arrivals)", "mmpp"),
    "flash": Scenario(
        "a flash crowd: three times the rate for 5 s", "flash", lasts_s=5.0, at_most=1 / 6
    ),
    "mixed": Scenario("deadlines of 0.5, 1 and 2 times", deadline_mix=(0.5, 1.0, 2.0)),
    "hog": Scenario("another process takes half a core for 10 s", lasts_s=10.0),
    "kill": Scenario("a worker is killed and replaced", lasts_s=0.0, seconds=45.0),
}


def disturbance(settings: CompareSettings) -> tuple[float, float] | None:
    """Begin and end in seconds from the start of a run; None for none."""
    scenario = SCENARIOS[settings.scenario]
    if scenario.lasts_s is None:
        return None
    span_s = settings.seconds + settings.warmup_s
    begin_s = span_s / 3.0
    return begin_s, begin_s + min(scenario.lasts_s, span_s * scenario.at_most)


class Misfortune:
    """Makes a scenario's events happen to a live cluster, and sees when all is well again."""

    def __init__(self, cluster: LocalCluster, settings: CompareSettings, hog: Hog) -> None:
        self._cluster = cluster
        self._settings = settings
        self._hog = hog
        self._went = False
        self.back_s: float | None = None

    def events(self, job: Job) -> Sequence[Event]:
        """The events of one run."""
        span = disturbance(self._settings)
        self._went, self.back_s = False, None
        if span is None:
            return ()
        begin_s, end_s = span
        if self._settings.scenario == "hog":
            return ((begin_s, self._hog.start), (end_s, self._hog.stop))
        if self._settings.scenario == "kill":
            whole_s = self._settings.seconds + self._settings.warmup_s
            probes = np.arange(begin_s + _PROBE_S, whole_s, _PROBE_S).tolist()
            return ((begin_s, self._kill), *((at, self._probe(at)) for at in probes))
        return ()

    def _kill(self) -> None:
        self._cluster.kill_worker(self._cluster.worker_names()[0])

    def _probe(self, at_s: float) -> Callable[[], None]:
        def probe() -> None:
            if self.back_s is not None:
                return
            try:
                workers = self._cluster.status().pool(self._settings.model).workers
            except (FleetError, KeyError):
                return
            self._went = self._went or workers < self._settings.workers
            if self._went and workers >= self._settings.workers:
                self.back_s = at_s

        return probe


def additions(
    settings: CompareSettings, baseline: Baseline, workload: Workload, records: Records
) -> Point:
    """What a scenario's live point has besides: its timeline, and shares by deadline."""
    on_time = records.ending == Ending.ON_TIME
    known = [workload.qualities.get(name, 0.0) for name in records.variants]
    worth = np.array([*known, 0.0])[records.variant]
    line = timeline(records.due_ns, on_time, worth, settings.seconds + settings.warmup_s)
    inside = records.window_rows("open")
    budget_ms = records.budget_ns[inside] / 1e6 / (settings.deadline_ms or baseline.deadline_ms)
    by_deadline = {
        f"{factor:g}": float(on_time[inside][np.isclose(budget_ms, factor, rtol=1e-3)].mean())
        for factor in settings.deadline_mix
        if np.isclose(budget_ms, factor, rtol=1e-3).any()
    }
    return {"timeline": line.as_point(), "by_deadline": by_deadline}


def faults_of(settings: CompareSettings, cores: int, back_s: float | None) -> Faults:
    """The simulator's counterpart of a scenario's misfortune."""
    span = disturbance(settings)
    if settings.scenario == "hog" and span is not None:
        factor = cores / max(HOG_SHARE, cores - HOG_SHARE)
        return Faults(slow_downs=(SlowDown(span[0], span[1], factor),))
    if settings.scenario == "kill" and span is not None:
        return Faults(losses=(WorkerLoss(span[0], 0, _DETECTED_S, back_s or 0.0),))
    return Faults()


def simulate_scenario(
    settings: CompareSettings, workload: Workload, store: Store, cores: int
) -> list[Point]:
    """Every live policy's counterpart on the traffic it met, and the bound where none fails.

    A killed worker comes back when the live one did.
    """
    assert store.baseline is not None
    assert store.served is not None
    live = {
        (p["policy"], p["load_factor"], p["seed"]): p for p in store.points if p["kind"] == "live"
    }
    points: list[Point] = []
    for policy, load, seed in live:
        calibration = calibration_at(store.points, load)
        if calibration is None:
            continue
        job = Job(policy, load, seed)
        faults = faults_of(settings, cores, live[job].get("back_s"))
        known = (settings, job, store.baseline, workload, store.served, calibration)
        points.append(_with_timeline(settings, simulate_job(*known, faults), store.served))
        if not faults and policy == settings.policies[0]:
            points.append(bound_job(*known))
    return points


def _with_timeline(settings: CompareSettings, played: Played, served: SimModel) -> Point:
    qualities = np.array([*(c.quality for c in served.table().candidates), 0.0])
    line = timeline(
        played.workload.arrived_ns,
        played.endings.ending == Ending.ON_TIME,
        qualities[played.endings.variant],
        settings.seconds + settings.warmup_s,
    )
    return {**played.point, "timeline": line.as_point()}


def recoveries(
    points: Sequence[Mapping[str, Any]], settings: CompareSettings
) -> dict[tuple[str, float], Recovery]:
    """The recovery of every policy (also simulated) and load, all seeds in one timeline."""
    span = disturbance(settings)
    lines: dict[tuple[str, float], list[Timeline]] = {}
    for point in points:
        if "timeline" in point:
            key = (point["policy"], point["load_factor"])
            lines.setdefault(key, []).append(Timeline.from_point(point["timeline"]))
    if span is None:
        return {}
    return {key: recovery(summed(parts), settings.warmup_s, *span) for key, parts in lines.items()}


def scenario_summary(store: Store, settings: CompareSettings) -> dict[str, float]:
    """`<policy>@<load>.` on_time_before, on_time_during, on_time_lowest, recovered (0 or 1) and
    recovery_s, which is the rest of the run when it was not seen; and on_time at a deadline.
    """
    summary: dict[str, float] = {}
    span = disturbance(settings)
    for (policy, load), found in recoveries(store.points, settings).items():
        at = f"{policy}@{load:g}"
        assert span is not None
        rest_s = settings.seconds + settings.warmup_s - span[0]
        summary[f"{at}.on_time_before"] = found.before
        summary[f"{at}.on_time_during"] = found.during
        summary[f"{at}.on_time_lowest"] = found.lowest
        summary[f"{at}.recovered"] = float(found.recovery_s is not None)
        summary[f"{at}.recovery_s"] = rest_s if found.recovery_s is None else found.recovery_s
    if len(settings.deadline_mix) > 1:
        summary |= _by_deadline(store)
    return summary


def _by_deadline(store: Store) -> dict[str, float]:
    assert store.baseline is not None
    found = {}
    for cell in cells(store.points, store.baseline.variant):
        mine = [
            p["by_deadline"]
            for p in store.points
            if p["policy"] == cell.policy and p["load_factor"] == cell.load and "by_deadline" in p
        ]
        for factor in sorted({factor for row in mine for factor in row}):
            values = [row[factor] for row in mine if factor in row]
            name = f"{cell.policy}@{cell.load:g}.on_time_at_{factor}"
            found[name] = float(np.mean(values))
    return found
