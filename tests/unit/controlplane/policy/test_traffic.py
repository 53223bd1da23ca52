"""What has been arriving lately."""

import pytest

from controlplane.policy.admission import Bounds, Load
from controlplane.policy.arrival import Arrival
from controlplane.policy.selector import Estimate
from controlplane.policy.traffic import Traffic
from tests.unit.controlplane.policy.world import MS, TABLE

SECOND = 1_000 * MS


def arrival(
    at_ns: int, eligible: tuple[int, ...] = (0, 1), deadline_ms: float = 30.0, service_ms: float = 8
) -> Arrival:
    return Arrival(
        now_ns=at_ns,
        slack_ns=int(deadline_ms * MS),
        trip_ns=1.0 * MS,
        eligible=eligible,
        estimates=[Estimate(k, service_ms * MS / (k + 1), 0.1) for k in eligible],
        nominal_ns=[int(service_ms * MS / (k + 1)) for k in eligible],
        load=Load(0.0, 0.0, 0, 2, 1),
        bounds=Bounds(100, SECOND),
        table=TABLE,
    )


def test_a_steady_rate_is_learned_and_forgotten() -> None:
    traffic = Traffic()
    for turn in range(500):
        traffic.arrive(arrival(turn * 10 * MS))
    assert traffic.rate_per_ns() * SECOND == pytest.approx(100.0, rel=0.05)
    traffic.arrive(arrival(15 * SECOND))
    assert traffic.rate_per_ns() * SECOND < 10.0


def test_a_burst_is_seen_before_the_mean_has_moved() -> None:
    traffic = Traffic()
    for turn in range(100):
        traffic.arrive(arrival(turn * 20 * MS))
    for turn in range(100):
        traffic.arrive(arrival(2 * SECOND + turn * 2 * MS))
    # 0.2 s at 500/s after 50/s: the mean of the last second is about 140/s.
    assert traffic.rate_per_ns() * SECOND > 250.0


def test_means_follow_the_arrivals() -> None:
    traffic = Traffic()
    for turn in range(50):
        traffic.arrive(arrival(turn * MS, deadline_ms=20.0 + 20.0 * (turn % 2), service_ms=8))
    assert traffic.deadline_ns == pytest.approx(30 * MS)
    assert traffic.services_ns == pytest.approx({0: 8 * MS, 1: 4 * MS})
    for turn in range(1000):
        traffic.arrive(arrival((50 + turn) * MS, service_ms=16))
    assert traffic.services_ns[0] == pytest.approx(16 * MS, rel=0.05)


@pytest.mark.parametrize("usual", [(0, 1), (1,)])
def test_the_usual_variants_are_those_of_most_arrivals(usual: tuple[int, ...]) -> None:
    traffic = Traffic()
    for turn in range(30):
        traffic.arrive(arrival(turn * MS, (0,) if turn % 3 == 0 else usual))
    assert traffic.eligible == usual
    for turn in range(100):
        traffic.arrive(arrival((30 + turn) * MS, usual))
    assert traffic.eligible == usual
