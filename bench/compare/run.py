"""Runs a comparison on one live cluster, run after run, keeping what is there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

from bench.compare.figures import cells, summary_of
from bench.compare.settings import BOUND, REFERENCE, CompareSettings, Job
from bench.compare.simulated import bound_job, calibration_at, simulate_job
from bench.compare.store import Store
from bench.load.metrics import measure
from bench.load.plan import Workload
from bench.load.processes import Event
from bench.load.record import Records
from bench.load.run import run_records
from bench.sim.answers import Answers
from bench.sim.calibration import calibrate
from bench.sim.live import live_model
from bench.sweep import Notify, measure_baseline
from deploy.cluster import LocalCluster

Point = dict[str, Any]
Happens = Callable[[Job], Sequence[Event]]
Adds = Callable[[Job, Records], Point]

# Another control plane, the driver's start, draining: about so long besides the traffic.
OVERHEAD_S = 3.0


def nothing_happens(job: Job) -> Sequence[Event]:
    """No event besides the traffic."""
    return ()


def nothing_added(job: Job, records: Records) -> Point:
    """No value besides the usual ones."""
    return {}


def jobs_left(settings: CompareSettings, store: Store) -> list[Job]:
    """The runs that the store does not have yet, in their order."""
    return [job for job in settings.jobs() if not store.has(job)]


def seconds_left(settings: CompareSettings, store: Store) -> float:
    """About how long the rest takes."""
    left = jobs_left(settings, store)
    run_s = settings.seconds + settings.warmup_s + OVERHEAD_S
    first_s = settings.solo_s + settings.capacity_s + OVERHEAD_S
    unknown = {job.seed for job in left} - set(store.baselines)
    return first_s * len(unknown) + run_s * len(left)


def run_live(
    cluster: LocalCluster,
    settings: CompareSettings,
    workload: Workload,
    store: Store,
    notify: Notify,
    *,
    happens: Happens = nothing_happens,
    adds: Adds = nothing_added,
    calm_until_s: float = 0.0,
) -> None:
    """Measures what the store lacks; each run gets a control plane that has learnt nothing.

    The workers stay. Before the runs of a seed capacity and solo latency are measured.
    `happens` gives a run's events, `adds` what its point has besides;
    only what is due until `calm_until_s` (0: everything) calibrates the simulator.
    """
    if store.served is None:
        store.served = live_model(cluster.address, settings.model)
    for number, job in enumerate(jobs_left(settings, store)):
        if job.seed not in store.baselines:
            cluster.restart_controlplane(policy=REFERENCE)
            cluster.wait_ready()
            asked = settings.baseline_settings()
            store.baselines[job.seed] = measure_baseline(cluster, asked, workload, notify)
        point = _run(cluster, settings, workload, store, job, notify, happens, adds, calm_until_s)
        store.keep([{**point, "order": number}])
        store.save(summarise(store))


def _run(
    cluster: LocalCluster,
    settings: CompareSettings,
    workload: Workload,
    store: Store,
    job: Job,
    notify: Notify,
    happens: Happens,
    adds: Adds,
    calm_until_s: float,
) -> Point:
    assert store.served is not None
    what = f"{job.policy} at {job.load:g}, seed {job.seed}"
    total = settings.seconds + settings.warmup_s + OVERHEAD_S
    notify(what, 0.0, total)
    cluster.restart_controlplane(policy=job.policy)
    before = cluster.wait_ready()
    asked = settings.plan(job, store.baselines[job.seed], cluster.address)
    plan = replace(asked, watch=cluster.pids())
    records = run_records(
        plan,
        workload,
        processes=settings.driver_processes,
        on_tick=lambda elapsed: notify(what, min(max(elapsed, 0.01), total * 0.99), total),
        events=happens(job),
    )
    result = measure(plan, workload, records)
    until_ns = int(calm_until_s * 1e9) if calm_until_s else None
    calibration = calibrate(records, workload, store.served, until_ns=until_ns)
    after = cluster.status()
    executed = after.expired_work_executed - before.expired_work_executed
    notify(what, total, total)
    return {
        "policy": job.policy,
        "load_factor": job.load,
        "seed": job.seed,
        "kind": "live",
        "rate_per_s": plan.rate_per_s,
        "expired_executed": max(0, executed),
        "calibration": calibration.as_point() if calibration else None,
        "on_time_deciles": [asdict(d) for d in after.pool(settings.model).calibration],
        **result.as_point(),
        **adds(job, records),
    }


def run_simulated(
    settings: CompareSettings,
    workload: Workload,
    store: Store,
    policies: Sequence[str],
    notify: Callable[[str], None],
    answers: Answers | None = None,
) -> None:
    """Simulates the policies (and `bound`) on the traffic of every load and seed measured live.

    Always anew, since more live runs make better ratios.
    """
    served = store.served
    assert served is not None
    points: list[Point] = []
    for load in settings.loads:
        calibration = calibration_at(store.points, load)
        if calibration is None or not workload.tokens:
            continue
        for seed in settings.seeds:
            baseline = store.baselines[seed]
            for policy in policies:
                notify(f"simulating {policy} at {load:g}")
                job = Job(policy, load, seed)
                known = (settings, job, baseline, workload, served, calibration)
                played = simulate_job(*known, answers=answers)
                points.append(played.point)
            notify(f"bounding {load:g}")
            job = Job(BOUND, load, seed)
            known = (settings, job, baseline, workload, served, calibration)
            points.append(bound_job(*known, answers=answers))
    store.keep(points)
    store.save(summarise(store))


def summarise(store: Store) -> dict[str, float]:
    """The flat summary of everything measured and simulated so far."""
    baseline = store.baseline
    live = [point for point in store.points if point["kind"] == "live"]
    return {
        "capacity_per_s": baseline.capacity_per_s,
        "solo_p50_ms": baseline.solo_p50_ms,
        "deadline_ms": baseline.deadline_ms,
        "expired_executed": float(max((p["expired_executed"] for p in live), default=0)),
        **store.extra,
        **summary_of(cells(store.points, baseline.variant)),
    }
