"""The demand that no choice can avoid."""

import pytest

from controlplane.policy.pressure import TIME_CONSTANT_NS, Demand

MS = 1_000_000


def test_steady_arrivals_show_the_workers_they_keep_busy() -> None:
    demand = Demand()
    for at in range(0, 3000, 2):
        demand.arrive(5 * MS, at * MS)
    assert demand.workers(3000 * MS) == pytest.approx(2.5, rel=0.01)


def test_demand_fades_when_arrivals_stop() -> None:
    demand = Demand()
    assert demand.workers(10**12) == 0.0
    demand.arrive(TIME_CONSTANT_NS, 0)
    assert demand.workers(0) == 1.0
    assert demand.workers(int(TIME_CONSTANT_NS)) == pytest.approx(0.3679, abs=1e-4)
