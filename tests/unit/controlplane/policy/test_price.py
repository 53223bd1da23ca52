"""The price rule at the head of a queue."""

from __future__ import annotations

import pytest

from controlplane.policy.foresight import Foresight
from controlplane.policy.orchid import Orchid
from controlplane.policy.price import Price
from controlplane.policy.profiles import VariantTable
from controlplane.policy.records import DecisionKind
from controlplane.policy.selector import Reason, Situation
from tests.unit.controlplane.policy.stand import DEADLINE, Stand
from tests.unit.controlplane.policy.world import MS, candidate

TABLE = VariantTable.build(
    [candidate("best", 0.92, 30.0), candidate("middle", 0.90, 16.0), candidate("fast", 0.84, 4.0)]
)
NOMINAL = [30 * MS, 16 * MS, 4 * MS]
ALL = (0, 1, 2)


def stand(gap_ms: float, arrivals: int = 600) -> Stand:
    made = Stand(Price(Orchid()).of_pool(), TABLE, NOMINAL, Foresight(TABLE))
    made.arrivals(gap_ms, arrivals)
    return made


CALM, BUSY, CROWDED = stand(60.0), stand(10.0), stand(2.2, arrivals=3000)


def test_with_time_the_most_accurate_answers() -> None:
    decision = CALM.decide(90.0, 0)
    assert (decision.variant, decision.reason) == (0, Reason.MOST_ACCURATE)
    assert not decision.approximation


def test_the_more_arrive_the_cheaper_the_answer() -> None:
    chosen = [made.decide(80.0, 1).variant for made in (CALM, BUSY, CROWDED)]
    assert chosen == sorted(chosen)
    assert chosen[0] == 0
    assert chosen[-1] == 2


def test_the_more_wait_the_cheaper_the_answer() -> None:
    chosen = [BUSY.decide(80.0, waiting).variant for waiting in (0, 2, 5, 20)]
    assert chosen == sorted(chosen)
    assert chosen[0] == 0
    assert BUSY.decide(80.0, 60).reason == Reason.FASTEST_UNDER_LOAD


def test_a_variant_between_may_be_worth_most() -> None:
    decisions = [BUSY.decide(80.0, waiting) for waiting in range(12)]
    assert Reason.LIMITED_BY_PRICE in {decision.reason for decision in decisions}


def test_little_slack_takes_a_variant_that_is_sure() -> None:
    decision = CALM.decide(31.0, 0)
    assert (decision.variant, decision.reason) == (1, Reason.LIMITED_BY_SLACK)
    assert CALM.decide(15.0, 0).reason == Reason.FASTEST_FOR_SLACK


def test_with_room_for_it_the_most_accurate_runs_though_less_likely_on_time() -> None:
    made = stand(60.0)
    for turn in range(400):
        made.foresight.ended(
            TABLE.candidates[0],
            promised_ns=31 * MS,
            needed_ns=(50 if turn % 10 == 0 else 31) * MS,
            slack_ns=45 * MS,
            chance=0.9,
            whole=True,
        )
    calm = made.decide(45.0, 0)
    assert calm.variant == 0
    assert 0.88 < calm.chance < 0.94
    made.arrivals(16.0, 300)
    assert made.decide(45.0, 0).variant == 1


def test_a_hopeless_head_is_dropped_for_those_behind_it() -> None:
    dropped = BUSY.decide(3.0, 5)
    assert (dropped.kind, dropped.reason) == (DecisionKind.DROP, Reason.SHED_UNLIKELY)
    expired = BUSY.decide(0.0, 0)
    assert (expired.kind, expired.reason) == (DecisionKind.DROP, Reason.EXPIRED)


def test_with_nobody_behind_a_chance_is_taken() -> None:
    assert BUSY.decide(5.0, 0).reason == Reason.LAST_CHANCE
    assert BUSY.decide(1.0, 0).kind is DecisionKind.DROP


@pytest.mark.parametrize("waiting", [0, 1, 5, 50, 500])
@pytest.mark.parametrize("made", [CALM, BUSY, CROWDED])
def test_who_can_be_answered_in_time_is_never_dropped(made: Stand, waiting: int) -> None:
    assert made.decide(10.0, waiting).kind is DecisionKind.RUN


def test_runs_that_come_late_make_it_choose_surer_variants() -> None:
    made = stand(60.0)
    assert made.decide(45.0, 0).variant == 0
    for _ in range(40):
        made.foresight.ended(
            TABLE.candidates[0],
            promised_ns=31 * MS,
            needed_ns=55 * MS,
            slack_ns=45 * MS,
            chance=0.99,
            whole=True,
        )
    assert made.decide(45.0, 0).variant == 1


def test_until_the_values_have_converged_the_reserve_decides() -> None:
    made = Stand(Price(Orchid()), TABLE, NOMINAL, Foresight(TABLE))
    assert made.arrive(10.0)
    made.policy.refresh(made.now_ns)
    same = Orchid().decide(made.foresight.estimates(ALL, NOMINAL), _crowd())
    assert made.policy.decide(made.foresight.estimates(ALL, NOMINAL), _crowd()) == same


def test_values_of_crowds_that_never_were_are_not_waited_for() -> None:
    made = Stand(Price(Orchid()), TABLE, NOMINAL, Foresight(TABLE))
    for _ in range(8):
        made.arrive(150.0)
        made.policy.refresh(made.now_ns)
    assert made.policy.price_per_s() > 0.0


def test_traffic_without_any_time_left_is_not_priced() -> None:
    made = Stand(Price(Orchid()), TABLE, NOMINAL, Foresight(TABLE))
    for _ in range(5):
        made.arrive(1.0, deadline_ns=0)
        made.policy.refresh(made.now_ns)
    assert made.decide(0.0, 0).kind is DecisionKind.DROP
    assert made.decide(90.0, 0).reason == Reason.MOST_ACCURATE


def test_a_new_table_starts_anew() -> None:
    made = stand(10.0)
    other = VariantTable.build(list(TABLE.candidates))
    assert made.arrive(10.0, other)
    assert made.decide(80.0, 20).reason in {Reason.FASTEST_UNDER_LOAD, Reason.LIMITED_BY_RESERVE}


def _crowd() -> Situation:
    return Situation(
        slack_ns=80 * MS,
        deadline_ns=DEADLINE,
        busy_ns=20.0 * MS,
        queued_ns=40.0 * MS,
        waiting=10,
        workers=2,
        hopeful_ns=4.0 * MS,
        trip_ns=1.0 * MS,
    )
