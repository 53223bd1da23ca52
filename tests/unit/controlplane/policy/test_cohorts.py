"""Prices of cohorts: who is underpredicted for good pays more, and nobody else does."""

from __future__ import annotations

import math

import numpy as np
import pytest

from controlplane.policy.cohorts import FEWEST_RUNS, MOST_COHORTS, Cohorts, cohort_of
from controlplane.policy.hands import Flight
from controlplane.policy.parts import shares
from controlplane.policy.profiles import VariantTable
from controlplane.policy.records import Request, RequestClass, Shape
from controlplane.policy.scheduler import Scheduler
from tests.unit.controlplane.policy.world import MODEL, MS, candidate, request, scheduler

SHOP, LAB = RequestClass(tenant="shop"), RequestClass(tenant="lab")
S = 1000 * MS
SHARING = VariantTable.build([candidate("only", 0.9, 4.0, fixed_share=0.5)])


def of(klass: RequestClass, price: float = 1.0, tokens: int = 10) -> Request:
    made = request(100, klass=klass, shape=Shape.of_lengths([tokens]))
    made.price = price
    return made


def ran(cohorts: Cohorts, klass: RequestClass, ratio: float, now_ns: int, tokens: int = 10) -> None:
    """One run, priced as it would be now, that takes `ratio` of what its size says."""
    one = of(klass, tokens=tokens)
    one.price = cohorts.price(one, now_ns)
    cohorts.learn([one], [int(10 * MS * one.price)], int(10 * MS * ratio), now_ns)


def test_a_cohort_that_takes_twice_its_prediction_has_its_price_within_fifty_runs() -> None:
    cohorts, noise = Cohorts(), np.random.default_rng(7)
    corrected_after = 0
    for number in range(1, 51):
        now = number * 10 * MS
        for _ in range(4):
            ran(cohorts, SHOP, noise.lognormal(0.0, 0.08), now)
        ran(cohorts, LAB, 2.0 * noise.lognormal(0.0, 0.08), now)
        if not corrected_after and cohorts.price(of(LAB), now) >= 1.8:
            corrected_after = number
    assert 0 < corrected_after <= 50
    assert cohorts.price(of(LAB), now) == pytest.approx(2.0, rel=0.1)
    assert cohorts.price(of(SHOP), now) == 1.0
    (dear,) = cohorts.prices(now)
    assert (dear.tenant, dear.tokens, dear.runs) == ("lab", 8, 50)


def test_what_was_predicted_before_the_price_rose_does_not_count_twice() -> None:
    cohorts = Cohorts()
    for number in range(60):
        ran(cohorts, SHOP, 1.0, number * MS)
        # Queued while nothing was known: priced at 1 all along.
        cohorts.learn([of(LAB)], [10 * MS], 20 * MS, number * MS)
    assert cohorts.price(of(LAB), 60 * MS) == pytest.approx(2.0, rel=0.02)


def test_what_befalls_everybody_is_no_cohorts_price() -> None:
    cohorts = Cohorts()
    for number in range(40):
        ran(cohorts, SHOP, 2.0, number * MS)
        ran(cohorts, LAB, 2.0, number * MS)
    assert not cohorts.prices(40 * MS)
    # Nor is what befalls the only one there is.
    alone = Cohorts()
    for number in range(40):
        ran(alone, SHOP, 3.0, number * MS)
    assert alone.price(of(SHOP), 40 * MS) == 1.0 and not alone.raised


def test_a_few_slow_runs_raise_no_price() -> None:
    cohorts = Cohorts()
    for number in range(40):
        ran(cohorts, SHOP, 1.0, number * MS)
        ran(cohorts, LAB, 5.0 if number == 30 else 1.0, number * MS)
        assert cohorts.price(of(LAB), number * MS) == 1.0
    few = Cohorts()
    for number in range(FEWEST_RUNS - 1):
        ran(few, SHOP, 1.0, number * MS)
        ran(few, LAB, 2.0, number * MS)
    assert few.price(of(LAB), 8 * MS) == 1.0


def raised() -> Cohorts:
    cohorts = Cohorts()
    for number in range(60):
        ran(cohorts, SHOP, 1.0, number * MS)
        ran(cohorts, LAB, 2.0, number * MS)
    return cohorts


def test_a_price_falls_when_predictions_are_right_again() -> None:
    cohorts = raised()
    for number in range(40):
        now = (60 + number) * MS
        ran(cohorts, SHOP, 1.0, now)
        ran(cohorts, LAB, 1.0, now)
    assert cohorts.price(of(LAB), now) == 1.0


def test_what_nobody_confirms_is_forgotten() -> None:
    cohorts = raised()
    assert cohorts.price(of(LAB), 60 * S) == pytest.approx(1.5, rel=0.02)
    assert cohorts.price(of(LAB), 600 * S) == 1.0


def test_sizes_are_cohorts_of_their_own() -> None:
    cohorts = Cohorts()
    for number in range(60):
        ran(cohorts, SHOP, 1.0, number * MS, tokens=10)
        ran(cohorts, SHOP, 2.0, number * MS, tokens=40)
    assert cohorts.price(of(SHOP, tokens=60), 60 * MS) == pytest.approx(2.0, rel=0.02)
    assert cohorts.price(of(SHOP, tokens=15), 60 * MS) == 1.0
    assert cohort_of(of(SHOP, tokens=31)) != cohort_of(of(SHOP, tokens=32))


def test_shared_runs_tell_cohorts_apart() -> None:
    cohorts, draw = Cohorts(), np.random.default_rng(3)
    for number in range(400):
        now = number * MS
        members = [of(LAB if lab else SHOP) for lab in draw.random(4) < 0.3]
        for each in members:
            each.price = cohorts.price(each, now)
        parts = [int(10 * MS * each.price) for each in members]
        took = sum(20 * MS if each.klass is LAB else 10 * MS for each in members)
        cohorts.learn(members, parts, took, now)
    assert cohorts.price(of(LAB), now) == pytest.approx(2.0, rel=0.1)
    assert cohorts.price(of(SHOP), now) == 1.0


def test_a_flood_of_names_drives_out_nobody() -> None:
    cohorts = raised()
    for number in range(1000):
        ran(cohorts, RequestClass(tenant=f"t{number}"), 1.0, 60 * MS + number)
    assert len(cohorts) == MOST_COHORTS
    assert cohorts.price(of(LAB), 61 * MS) > 1.9


def test_newcomers_of_one_run_that_find_no_room_harm_nothing() -> None:
    cohorts = Cohorts()
    for number in range(MOST_COHORTS):
        for _ in range(3):
            ran(cohorts, RequestClass(tenant=f"t{number}"), 1.0, number)
    strangers = [of(RequestClass(tenant=f"new{number}")) for number in range(3)]
    cohorts.learn(strangers, [10 * MS] * 3, 30 * MS, 100)
    assert len(cohorts) == MOST_COHORTS


def test_a_run_is_predicted_again_at_the_present_prices() -> None:
    cohorts = raised()
    now = 60 * MS
    assert cohorts.repriced([of(LAB)], [10 * MS], now) == pytest.approx(2.0, rel=0.02)
    assert cohorts.repriced([of(LAB), of(SHOP)], [5 * MS, 5 * MS], now) == pytest.approx(
        1.5, rel=0.02
    )
    assert cohorts.repriced([of(SHOP)], [10 * MS], now) == 1.0


# --- in the scheduler ----------------------------------------------------------------


def play(made: Scheduler, hidden: float, runs: int) -> list[Flight]:
    """Requests of both in turns; those of the lab take `hidden` times what their size says."""
    flights = []
    now = 0
    for number in range(runs):
        one = of(LAB if number % 2 else SHOP)
        one.arrived_ns, one.deadline_ns = now, now + S
        assert made.offer(one, now).admitted
        flight = made.next_step(now)
        assert isinstance(flight, Flight)
        flights.append(flight)
        truth = flight.candidate.profile.predict(one.shapes["words"])
        took = int(truth * (hidden if one.klass is LAB else 1.0))
        now += took
        made.finished(flight.worker, flight.id, now, run_ns=took)
        now += MS
    return flights


def test_the_pool_predicts_at_the_price_and_corrects_no_variant_for_it() -> None:
    made = scheduler()
    last = play(made, 2.0, 120)[-2:]
    shop, lab = (flight.predicted_ns for flight in last)
    assert shop == pytest.approx(10 * MS, rel=0.1)
    assert lab == pytest.approx(20 * MS, rel=0.1)
    assert made.pools[MODEL].foresight.corrections.factors[0] == pytest.approx(1.0, abs=0.1)
    assert made.violations(0) == []


def test_a_waiting_request_weighs_what_its_cohort_takes() -> None:
    made = scheduler(prefetch=0)
    play(made, 2.0, 120)
    now = 10 * S
    blocker, waiting = of(SHOP), of(LAB)
    for each in (blocker, waiting):
        each.arrived_ns, each.deadline_ns = now, now + S
        assert made.offer(each, now).admitted
    assert isinstance(made.next_step(now), Flight)
    # On its fastest variant: 4 ms by its size.
    assert made.pools[MODEL].line.work.total == pytest.approx(8 * MS, rel=0.1)


def test_compared_policies_know_of_no_cohorts() -> None:
    assert scheduler(policy="published-adaptive").pools[MODEL].cohorts is None


def test_a_shared_run_is_charged_by_tokens_at_their_price() -> None:
    made = scheduler(max_batch=4, prefetch=0, table=SHARING)
    one, two = of(SHOP, tokens=10), of(LAB, 3.0, tokens=10)
    for each in (one, two):
        each.deadline_ns, each.eligible = S, (0,)
        assert made.offer(each, 0).admitted
    # The door prices what comes; here that is nobody yet, so the price set before stays.
    flight = made.next_step(0)
    assert isinstance(flight, Flight) and len(flight.requests) == 2
    profile = flight.candidate.profile
    both = profile.predict(one.shapes["words"], [two.shapes["words"]])
    assert flight.nominal_ns == both + 2 * profile.predict(two.shapes["words"])
    assert shares(400, [10, 30]) == [100, 300]


def test_prices_have_bounds() -> None:
    cohorts = Cohorts()
    for number in range(300):
        ran(cohorts, SHOP, 1.0, number * MS)
        ran(cohorts, LAB, 50.0, number * MS)
    price = cohorts.price(of(LAB), 300 * MS)
    assert price == 4.0 and math.isfinite(price)
