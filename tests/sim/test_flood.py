"""A flood of ten times the capacity on a machine that is slow for a second now and then."""

from __future__ import annotations

import numpy as np
import pytest

from bench.sim.arrivals import Poisson
from bench.sim.model import mean_service_ns, two_variants
from bench.sim.result import SimResult
from bench.sim.service import Faults, SlowDown
from bench.sim.workload import Deadlines, FixedLength, draw_workload
from bench.sim.world import SimSettings, simulate

SECONDS = 10.0
LENGTH = FixedLength(27)
TABLE = two_variants(60.0, 30.0, (0.93, 0.86)).table()
# The driver takes its share of the machine all the time, and something else for three seconds.
SLOW = Faults(
    slow_downs=(
        SlowDown(0.0, 20.0, 1.15),
        *(SlowDown(begin, begin + 1.0, 1.35) for begin in (2.0, 5.0, 7.5)),
    )
)


def flood(policy: str, workers: int = 1, faults: Faults = SLOW) -> SimResult:
    rate = 10.0 * workers * 1e9 / mean_service_ns(TABLE.candidates[-1], LENGTH)
    traffic = draw_workload(
        np.random.default_rng(1), Poisson(rate), LENGTH, Deadlines(500.0), SECONDS
    )
    return simulate(
        traffic, TABLE, SimSettings(workers=workers, policy=policy, faults=faults, max_batch=1)
    )


@pytest.mark.parametrize("policy", ["price", "orchid"])
@pytest.mark.parametrize("workers", [1, 2])
def test_the_admitted_are_on_time_though_the_machine_is_not_steady(
    policy: str, workers: int
) -> None:
    result = flood(policy, workers)
    assert result.on_time_of_admitted >= 0.98
    # Workers are never without work: what is refused could not have been served.
    assert result.utilisation > 0.95


def test_refusing_earlier_costs_no_answers() -> None:
    """Against the whole capacity of the fastest variant, slow as the machine is."""
    result = flood("price")
    slowness = 1.15 * (1.0 + 3 * 0.35 / SECONDS)
    assert result.on_time_answers >= 0.93 * SECONDS / 0.030 / slowness
