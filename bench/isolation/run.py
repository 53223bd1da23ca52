"""Plays the phases of a lane in turns and tells what a flood moved."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from bench.isolation.decode import decode_lane
from bench.isolation.encoder import EncoderLane, encoder_lane
from bench.isolation.fairness import DriftWatch, last_record, served_ratio
from bench.isolation.lane import OTHER, STEADY, IsolationSettings, Lane
from bench.isolation.seen import ALONE, FLOOD, PHASES, Seen, figures, point, summarise
from bench.load.processes import CommonStart, soon
from bench.report import Report, host_facts, make_report
from controlplane.tenants import TenantsConfig
from deploy.fleet_views import FleetStatus

_SETTLE_S = 20.0
# The configuration's default, which the cluster has.
_BOUND_MS = TenantsConfig().bound_ms

Notify = Callable[[str], None]


@contextmanager
def _lane(settings: IsolationSettings, repository: Path, base: Path) -> Iterator[Lane]:
    if settings.lane == "encoder":
        with encoder_lane(settings, base) as encoder:
            yield encoder
    else:
        with decode_lane(settings, repository, base) as decode:
            yield decode


def run_isolation(
    settings: IsolationSettings,
    repository: Path,
    base: Path,
    generator: np.random.Generator,
    notify: Notify = lambda what: None,
) -> Report:
    """Plays every phase `rounds` times, in an order that turns round with each.

    Summary: that of `summarise`; `cpu_charged` and `tokens_charged`, what was charged over what the
    workers measured; `fair_served_ratio` and in the encoder lane the rest of `Drift`, two floods at
    a time. The generator draws the rounds of intervals. Raises ClusterError, DriverError,
    FleetError, or ValueError when nothing is answered.
    """
    host = host_facts()
    played: dict[str, list[list[Seen]]] = {phase: [] for phase in PHASES}
    points: list[dict[str, Any]] = []
    with _lane(settings, repository, base) as lane:
        for number in range(settings.rounds):
            for phase in PHASES if number % 2 == 0 else reversed(PHASES):
                notify(f"round {number + 1} of {settings.rounds}: {phase}")
                steady, other = _phase(lane, settings, phase, number + 1)
                played[phase].append(steady)
                _settled(lane)
                for tenant, seen in ((STEADY, steady), (OTHER, other)):
                    if seen:
                        found = point(figures([seen], lane.deadline_ns))
                        points.append({"round": number, "phase": phase, "tenant": tenant, **found})
        summary = summarise(played, lane.deadline_ns, generator)
        notify("two floods at a time")
        summary |= _fairness(lane, settings, base / "records.sqlite")
        summary |= _charges(_settled(lane))
    return make_report(
        f"isolation-{settings.lane}",
        host=host,
        settings=asdict(settings),
        points=points,
        summary=summary,
    )


def _phase(
    lane: Lane, settings: IsolationSettings, phase: str, seed: int
) -> tuple[list[Seen], list[Seen]]:
    """What both saw; the steady one asks the same each time, and the other one is there before."""
    if phase == ALONE:
        return lane.ask(STEADY, settings.used, settings.seconds, seed, soon), []
    start, lead_ns = CommonStart(2), int(settings.lead_s * 1e9)
    load = settings.times if phase == FLOOD else 1.0
    span = settings.seconds + settings.lead_s
    with ThreadPoolExecutor(1) as pool:
        beside = pool.submit(lane.ask, OTHER, load, span, seed + 1000, start)
        steady = lane.ask(STEADY, settings.used, settings.seconds, seed, lambda: start() + lead_ns)
        return steady, beside.result()


def _fairness(lane: Lane, settings: IsolationSettings, records: Path) -> dict[str, float]:
    """Both flood for as long as a phase, and what each is served is looked at meanwhile."""
    cores = settings.workers
    shares = {STEADY: settings.reserved * cores, OTHER: (1.0 - settings.reserved) * cores}
    start, since = CommonStart(2), last_record(records)
    with DriftWatch(lane.cluster, shares) as watch, ThreadPoolExecutor(1) as pool:
        beside = pool.submit(lane.flood, OTHER, settings.seconds, 2000, start)
        lane.flood(STEADY, settings.seconds, 1, start)
        beside.result()
    _settled(lane)
    if not isinstance(lane, EncoderLane):
        return {"fair_served_ratio": served_ratio(records, since, shares)}
    if not watch.looks:
        raise ValueError("both tenants were never seen waiting at the same time")
    drift = watch.drift(records, since, _BOUND_MS, settings.workers)
    return {f"fair_{name}": float(value) for name, value in asdict(drift).items()}


def _charges(status: FleetStatus) -> dict[str, float]:
    """What was charged over what the workers measured of it, CPU time and tokens held."""
    charges = [worker.charges for worker in status.workers]
    run = sum(each.run_cpu_ms for each in charges)
    held = sum(each.live_token_ms for each in charges)
    found: dict[str, float] = {}
    if run:
        found["cpu_charged"] = sum(each.charged_cpu_ms for each in charges) / run
    if held:
        found["tokens_charged"] = sum(each.charged_live_token_ms for each in charges) / held
    return found


def _settled(lane: Lane) -> FleetStatus:
    """The cluster with nothing in flight and what its workers report of that."""
    until = time.monotonic() + _SETTLE_S
    before = -1.0
    while True:
        status = lane.cluster.status()
        spent = sum(w.charges.run_cpu_ms + w.charges.live_token_ms for w in status.workers)
        busy = any(status.gauges.values()) or spent != before
        if not busy or time.monotonic() > until:
            return status
        before = spent
        time.sleep(0.3)
