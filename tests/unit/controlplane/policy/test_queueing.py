"""Queueing formulas against published and closed-form values."""

import math

import pytest

from controlplane.policy.queueing import (
    Demand,
    erlang_b,
    erlang_c,
    mean_wait,
    on_time_share,
    wait_exceeds,
    workers_for,
)


def test_erlang_b_matches_the_tables() -> None:
    assert erlang_b(1, 1.0) == pytest.approx(0.5)
    assert erlang_b(2, 1.0) == pytest.approx(0.2)
    assert erlang_b(10, 5.0) == pytest.approx(0.018385, abs=1e-6)
    assert erlang_b(0, 3.0) == 1.0


def test_erlang_c_of_one_server_is_its_utilisation() -> None:
    assert erlang_c(1, 0.7) == pytest.approx(0.7)
    assert erlang_c(2, 1.0) == pytest.approx(1 / 3)
    assert erlang_c(3, 3.0) == 1.0


def test_mean_wait_is_exact_for_one_server() -> None:
    markov = Demand(rate=0.8, service=1.0, service_scv=1.0)
    assert mean_wait(markov, 1) == pytest.approx(0.8 / 0.2)
    constant = Demand(rate=0.8, service=1.0, service_scv=0.0)
    assert mean_wait(constant, 1) == pytest.approx(0.5 * 0.8 / 0.2)


def test_beyond_capacity_the_wait_is_infinite_and_nothing_is_on_time() -> None:
    flooded = Demand(rate=3.0, service=1.0)
    assert math.isinf(mean_wait(flooded, 2))
    assert wait_exceeds(flooded, 2, 10.0) == 1.0
    assert on_time_share(flooded, 2, 10.0) == 0.0


def test_the_wait_tail_of_mm1_is_exact() -> None:
    demand = Demand(rate=0.5, service=1.0, service_scv=1.0)
    assert wait_exceeds(demand, 1, 2.0) == pytest.approx(0.5 * math.exp(-0.5 * 2.0))
    assert wait_exceeds(demand, 1, -0.1) == 1.0


def test_workers_for_gives_the_fewest_that_hold() -> None:
    demand = Demand(rate=300.0, service=0.0129, service_scv=0.05)
    plan = workers_for(demand, deadline=0.0387, percentile=0.99)
    assert plan.on_time >= 0.99
    assert on_time_share(demand, plan.workers - 1, 0.0387) < 0.99
    assert plan.utilisation == pytest.approx(300.0 * 0.0129 / plan.workers)


def test_bursts_need_more_workers() -> None:
    steady = workers_for(Demand(300.0, 0.0129), 0.0387, 0.99)
    bursty = workers_for(Demand(300.0, 0.0129, arrival_scv=8.0), 0.0387, 0.99)
    assert bursty.workers > steady.workers


def test_a_deadline_below_the_service_is_refused_with_the_numbers() -> None:
    with pytest.raises(ValueError, match=r"0\.02 .*0\.01"):
        workers_for(Demand(1.0, 0.02), 0.01, 0.9)
    with pytest.raises(ValueError, match="percentile"):
        workers_for(Demand(1.0, 0.02), 0.1, 1.0)
