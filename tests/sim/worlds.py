"""Small worlds for the simulator's tests: two variants, round numbers, one seed."""

from __future__ import annotations

import numpy as np

from bench.sim.arrivals import process
from bench.sim.model import mean_service_ns, routable, two_variants
from bench.sim.workload import REVIEW_LENGTHS, Deadlines, Workload, draw_workload
from bench.sim.world import SimSettings, World
from controlplane.policy.profiles import VariantTable

TABLE: VariantTable = two_variants().table()
SERVICE_NS = mean_service_ns(routable(TABLE)[0], REVIEW_LENGTHS)
DEADLINE_MS = 3.0 * SERVICE_NS / 1e6


def workload(
    load: float,
    *,
    seconds: float = 5.0,
    workers: int = 2,
    seed: int = 1,
    arrivals: str = "poisson",
    factors: tuple[float, ...] = (1.0,),
) -> Workload:
    """Traffic at `load` times what the accurate variant can carry."""
    return draw_workload(
        np.random.default_rng(seed),
        process(arrivals, load * workers * 1e9 / SERVICE_NS, seconds),
        REVIEW_LENGTHS,
        Deadlines(DEADLINE_MS, factors),
        seconds,
    )


def world(traffic: Workload, policy: str = "orchid", **settings: object) -> World:
    """The traffic before a deployment of two workers, unless the settings say otherwise."""
    return World(traffic, TABLE, SimSettings(policy=policy, **settings))  # type: ignore[arg-type]
