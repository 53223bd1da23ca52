"""A plan beside the simulator: what so many workers give when the live policy plays the traffic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Any

import numpy as np

from bench.sim.arrivals import ArrivalProcess, MarkovModulated, Poisson
from bench.sim.result import SimResult
from bench.sim.workload import Deadlines, Lengths, draw_workload
from bench.sim.world import SimSettings, simulate
from controlplane.policy.profiles import VariantTable
from controlplane.policy.provision import Outlook, Traffic

WARMUP_S = 1.0


def bursty(rate_per_s: float, scv: float) -> ArrivalProcess:
    """Arrivals at a rate whose counts, over long times, vary as those of renewals with this scv.

    1 is Poisson. Above, a two-state process of fixed rates (0.5 and 2.5 times the mean) switches
    so fast or slowly that its index of dispersion is `scv`. Raises ValueError below 1.
    """
    if scv < 1.0:
        raise ValueError(f"arrivals steadier than Poisson are not simulated, got {scv}")
    if scv == 1.0:
        return Poisson(rate_per_s)
    # Index of dispersion of a switched Poisson process with rates l1, l2 that it leaves at r1, r2
    # (Fischer and Meier-Hellstern 1993): 1 + 2 (l1 - l2)^2 r1 r2 / ((r1 + r2)^2 (l1 r2 + l2 r1)),
    # which is 1 + 9/32 (busy - quiet)^2 rate busy_s when quiet lasts three times as long.
    quiet, busy = 0.5, 2.5
    busy_s = (scv - 1.0) / (9.0 / 32.0 * (busy - quiet) ** 2 * rate_per_s)
    return MarkovModulated(rate_per_s, quiet, busy, 3.0 * busy_s, busy_s)


def simulated(
    table: VariantTable,
    traffic: Traffic,
    lengths: Lengths,
    workers: int,
    *,
    policy: str = "orchid",
    seconds: float = 20.0,
    seeds: Sequence[int] = (1, 2),
) -> list[SimResult]:
    """Plays the traffic on so many workers, once a seed; the chain knows the policy `orchid`."""
    settings = SimSettings(
        workers=workers, policy=policy, trip_ns=int(traffic.trip_ns), warmup_s=WARMUP_S
    )
    arrivals = bursty(traffic.rate_per_s, traffic.arrival_scv)
    deadlines = Deadlines(traffic.deadline_ns / 1e6)
    return [
        simulate(
            draw_workload(np.random.default_rng(seed), arrivals, lengths, deadlines, seconds),
            table,
            settings,
        )
        for seed in seeds
    ]


def plan_point(outlook: Outlook, results: Sequence[SimResult]) -> dict[str, Any]:
    """One number of workers as JSON values, with what the simulator found if it was asked."""
    point: dict[str, Any] = asdict(outlook)
    if results:
        point["simulated"] = {
            "on_time": fmean(result.on_time for result in results),
            "quality": fmean(result.accuracy for result in results),
            "utilisation": fmean(result.utilisation for result in results),
            "seeds": len(results),
        }
    return point
