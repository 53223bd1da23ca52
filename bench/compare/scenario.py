"""Traffic and misfortunes that policies are tried with: what they are, simulated, and read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.compare.figures import cells
from bench.compare.settings import CompareSettings, Job
from bench.compare.simulated import Played, bound_job, calibration_at, simulate_job
from bench.compare.store import Store
from bench.compare.timeline import Recovery, Shares, Timeline, bursts, recovery, summed, timeline
from bench.load.metrics import worth_of
from bench.load.plan import Process, Workload
from bench.load.record import Records
from bench.sim.answers import Answers
from bench.sim.model import SimModel
from bench.sim.result import Ending
from bench.sim.service import Faults, SlowDown, WorkerLoss
from bench.sweep import Baseline

Point = dict[str, Any]

HOG_SHARE = 0.5
_DETECTED_S = 0.05


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


def additions(
    settings: CompareSettings, baseline: Baseline, workload: Workload, records: Records
) -> Point:
    """What a scenario's live point has besides, or in place of what every run has.

    That is its timeline, and shares by deadline. Where a worker is killed the CPU of the workers is
    null: what it and its replacement used is not known.
    """
    on_time = records.ending == Ending.ON_TIME
    worth = np.nan_to_num(worth_of(records, workload))
    line = timeline(records.due_ns, on_time, worth, settings.seconds + settings.warmup_s)
    inside = records.window_rows("open")
    budget_ms = records.budget_ns[inside] / 1e6 / (settings.deadline_ms or baseline.deadline_ms)
    by_deadline = {
        f"{factor:g}": float(on_time[inside][np.isclose(budget_ms, factor, rtol=1e-3)].mean())
        for factor in settings.deadline_mix
        if np.isclose(budget_ms, factor, rtol=1e-3).any()
    }
    unknown = {"cpu_cost_ms": None} if settings.scenario == "kill" else {}
    return {"timeline": line.as_point(), "by_deadline": by_deadline, **unknown}


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
    settings: CompareSettings,
    workload: Workload,
    store: Store,
    cores: int,
    answers: Answers | None = None,
) -> list[Point]:
    """Every live policy's counterpart on the traffic it met, and the bound where none fails.

    A killed worker comes back when the live one did. `answers` are what was recorded of each
    variant.
    """
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
        known = (settings, job, store.baselines[seed], workload, store.served, calibration)
        played = simulate_job(*known, faults, answers)
        points.append(_with_timeline(settings, played, store.served))
        if not faults and policy == settings.policies[0]:
            points.append(bound_job(*known, answers))
    return points


def _with_timeline(settings: CompareSettings, played: Played, served: SimModel) -> Point:
    qualities = np.array([*(c.quality for c in served.table().candidates), 0.0])
    line = timeline(
        played.workload.arrived_ns,
        played.endings.ending == Ending.ON_TIME,
        qualities[played.endings.variant] if played.endings.worth is None else played.endings.worth,
        settings.seconds + settings.warmup_s,
    )
    return {**played.point, "timeline": line.as_point()}


def timelines(points: Sequence[Mapping[str, Any]]) -> dict[tuple[str, float], list[Timeline]]:
    """The timelines of every policy (also simulated) and load, one a seed."""
    lines: dict[tuple[str, float], list[Timeline]] = {}
    for point in points:
        if "timeline" in point:
            key = (point["policy"], point["load_factor"])
            lines.setdefault(key, []).append(Timeline.from_point(point["timeline"]))
    return lines


def recoveries(
    points: Sequence[Mapping[str, Any]], settings: CompareSettings
) -> dict[tuple[str, float], Recovery]:
    """The recovery of every policy (also simulated) and load, all seeds in one timeline."""
    span = disturbance(settings)
    if span is None:
        return {}
    return {
        key: recovery(summed(parts), settings.warmup_s, *span)
        for key, parts in timelines(points).items()
    }


def scenario_summary(store: Store, settings: CompareSettings) -> dict[str, float]:
    """What a scenario's summary has besides, `<policy>@<load>.` and:

    `on_time_` and `accurate_goodput_` before, during and after a disturbance, on_time_lowest,
    recovered (0 or 1), recovery_s, which is the rest of the run when it was not seen, and
    replaced_s of a killed worker; busy, after_busy and quiet of bursts; on_time at a deadline.
    """
    summary: dict[str, float] = {}
    span = disturbance(settings)
    for (policy, load), found in recoveries(store.points, settings).items():
        at = f"{policy}@{load:g}"
        assert span is not None
        rest_s = settings.seconds + settings.warmup_s - span[0]
        phases = {"before": found.before, "during": found.during, "after": found.after}
        summary |= _by_phase(at, phases)
        summary[f"{at}.on_time_lowest"] = found.lowest
        summary[f"{at}.recovered"] = float(found.recovery_s is not None)
        summary[f"{at}.recovery_s"] = rest_s if found.recovery_s is None else found.recovery_s
    for (policy, load), replaced_s in replacements(store.points, settings).items():
        summary[f"{policy}@{load:g}.replaced_s"] = replaced_s
    if settings.arrivals == "mmpp":
        for (policy, load), lines in timelines(store.points).items():
            seen = bursts(lines, settings.warmup_s)
            phases = {"busy": seen.busy, "after_busy": seen.after, "quiet": seen.quiet}
            summary |= _by_phase(f"{policy}@{load:g}", phases)
    if len(settings.deadline_mix) > 1:
        summary |= _by_deadline(store)
    return summary


def replacements(
    points: Sequence[Mapping[str, Any]], settings: CompareSettings
) -> dict[tuple[str, float], float]:
    """Seconds from the kill until the replacement served, by policy and load, means over seeds."""
    span = disturbance(settings)
    found: dict[tuple[str, float], list[float]] = {}
    for point in points:
        if span is not None and point.get("back_s") is not None:
            key = (point["policy"], point["load_factor"])
            found.setdefault(key, []).append(point["back_s"] - span[0])
    return {key: float(np.mean(values)) for key, values in found.items()}


def _by_phase(at: str, phases: Mapping[str, Shares]) -> dict[str, float]:
    return {
        f"{at}.{figure}_{phase}": getattr(shares, figure)
        for figure in ("on_time", "accurate_goodput")
        for phase, shares in phases.items()
    }


def _by_deadline(store: Store) -> dict[str, float]:
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
