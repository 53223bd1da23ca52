"""The published policy's formulas and memory, and early binding, at the scheduler's own door."""

import math

import pytest

from controlplane.policy.host_load import HostLoad
from controlplane.policy.published import estimate_ns, pressure
from controlplane.policy.records import Request
from controlplane.policy.scheduler import Scheduler
from controlplane.policy.selector import Reason
from tests.unit.controlplane.policy.world import BEST, FAST, MS, TABLE, request, scheduler

SECOND = 1000


def names(offered: Request) -> list[str]:
    return [TABLE.candidates[k].name for k in offered.eligible]


def offer(made: Scheduler, offered: Request) -> bool:
    return made.offer(offered, offered.arrived_ns).admitted


def test_pressure_counts_from_half_of_the_machine() -> None:
    assert pressure(50.0) == pressure(0.0) == 0.0
    assert pressure(75.0) == pytest.approx(0.5)
    assert pressure(100.0) == pytest.approx(1.0)


def test_the_estimate_is_the_mean_sojourn_of_a_queue_with_one_worker() -> None:
    # M/M/1: 1 / (mu - lambda).
    service, rate = 10.0, 0.05
    assert estimate_ns(service, rate, 0, 1) == pytest.approx(1 / (1 / service - rate))


def test_the_estimate_follows_the_backlog_when_that_is_longer() -> None:
    assert estimate_ns(10.0, 0.0001, 5, 2) == pytest.approx(3 * 10.0 + 10.0)


def test_the_estimate_is_infinite_at_capacity() -> None:
    assert math.isinf(estimate_ns(10.0, 0.2, 0, 2))


def test_cpu_use_is_smoothed_over_quarter_seconds() -> None:
    load = HostLoad()
    for at_ms in range(0, 251, 50):
        load.report(100.0, at_ms * MS)
    assert load.percent == pytest.approx(30.0)
    load.report(0.0, 300 * MS)
    assert load.percent == pytest.approx(30.0)
    load.report(0.0, 510 * MS)
    assert load.percent == pytest.approx(21.0)


def test_a_quiet_house_gets_the_most_accurate_variant() -> None:
    quiet = request(40)
    assert offer(scheduler(policy="published-adaptive"), quiet)
    assert names(quiet) == [BEST.name]


def test_cpu_pressure_alone_makes_it_choose_the_faster_variant() -> None:
    made = scheduler(policy="published-adaptive")
    for at_ms in range(0, 5 * SECOND, 50):
        made.host_cpu(100.0, at_ms * MS)
    pressed = request(15, at_ms=5 * SECOND)
    assert offer(made, pressed)
    assert names(pressed) == [FAST.name]


@pytest.mark.parametrize("policy", ["published-adaptive", "orchid"])
def test_refused_arrivals_count_as_load_for_a_second(policy: str) -> None:
    made = scheduler(policy=policy)
    for at_ms in range(0, 500):
        offer(made, request(1, at_ms=at_ms))
    at_once = request(30, at_ms=500)
    # Orchid's own admission looks at work, and there is none.
    assert offer(made, at_once) is (policy == "orchid")
    later = request(30, at_ms=500 + SECOND)
    assert offer(made, later)


def test_published_accurate_never_takes_another_variant() -> None:
    made = scheduler(policy="published-accurate")
    assert not offer(made, request(8))
    roomy = request(40, at_ms=1)
    assert offer(made, roomy)
    assert names(roomy) == [BEST.name]


def test_the_published_policy_runs_what_has_expired() -> None:
    made = scheduler(policy="published-adaptive")
    assert offer(made, request(40))
    flight = made.next_step(100 * MS)
    assert flight is not None
    assert flight.decision.reason == Reason.FIXED_AT_ARRIVAL
    assert flight.decision.slack_ns < 0


def test_early_fixes_the_variant_by_the_work_ahead() -> None:
    made = scheduler(policy="early", prefetch=0)
    first, second, third = request(25), request(25), request(25)
    assert offer(made, first) and made.next_step(0) is not None
    assert offer(made, second) and offer(made, third) is False
    assert names(first) == [BEST.name]
    assert names(second) == [BEST.name]
    short = request(25, at_ms=3)
    assert offer(made, short)
    assert names(short) == [FAST.name]
