"""Late binding with a reserve, in exact numbers."""

import pytest

from controlplane.policy.margins import needed_ns, slack_ns
from controlplane.policy.records import Decision, DecisionKind
from controlplane.policy.selector import (
    Estimate,
    Reason,
    Situation,
    fixed,
    late_binding,
    reserve_share,
    spare_ns,
    work_ns,
)

BEST = Estimate(variant=0, predicted_ns=10.0, sigma=0.1)
FAST = Estimate(variant=1, predicted_ns=4.0, sigma=0.1)
BOTH = (BEST, FAST)
CALM = Situation(
    slack_ns=30,
    deadline_ns=30,
    busy_ns=0.0,
    queued_ns=0.0,
    waiting=0,
    workers=1,
    hopeful_ns=4.0,
)


def decide(situation: Situation, estimates: tuple[Estimate, ...] = BOTH) -> Decision:
    return late_binding(estimates, situation, z=1.645, reserve=0.35)


def test_with_room_the_most_accurate_answers() -> None:
    decision = decide(CALM)
    assert (decision.kind, decision.variant) == (DecisionKind.RUN, 0)
    assert decision.reason == Reason.MOST_ACCURATE
    assert decision.work_ahead_ns == 10.0
    assert not decision.approximation


def test_the_reserve_is_a_share_of_the_deadline_for_all_workers_together() -> None:
    # 0.35 * 30 = 10.5 per worker.
    assert decide(CALM._replace(queued_ns=0.5, waiting=1)).variant == 0
    full = decide(CALM._replace(queued_ns=0.6, waiting=1))
    assert (full.variant, full.reason) == (1, Reason.FASTEST_UNDER_LOAD)
    assert full.approximation
    assert decide(CALM._replace(queued_ns=11.0, waiting=3, workers=2)).variant == 0


def test_the_reserve_grows_with_room_and_shrinks_near_capacity() -> None:
    assert reserve_share(0.35, 0.0) == pytest.approx(0.6)
    assert reserve_share(0.35, 0.25 / 0.45) == pytest.approx(0.35)
    assert reserve_share(0.35, 0.8) == pytest.approx(0.24)
    assert reserve_share(0.35, 5.0) == pytest.approx(0.15)
    assert reserve_share(0.1, 5.0) == 0.0
    assert reserve_share(0.9, 0.0) == 1.0


def test_running_work_counts_like_queued_work() -> None:
    assert work_ns(BEST, CALM._replace(busy_ns=6.0, queued_ns=4.0, workers=2)) == 10.0
    assert decide(CALM._replace(busy_ns=0.6)).variant == 1


def test_a_variant_must_fit_the_slack_with_its_margin() -> None:
    # p (1 + z sigma) of the best is 11.645.
    assert decide(CALM._replace(slack_ns=12)).variant == 0
    short = decide(CALM._replace(slack_ns=11))
    assert (short.variant, short.reason) == (1, Reason.FASTEST_FOR_SLACK)


def test_between_two_extremes_the_most_accurate_that_fits() -> None:
    middle = Estimate(variant=1, predicted_ns=7.0, sigma=0.1)
    three = (BEST, middle, FAST._replace(variant=2))
    assert decide(CALM._replace(slack_ns=11), three).reason == Reason.LIMITED_BY_SLACK
    loaded = decide(CALM._replace(queued_ns=3.0, waiting=1), three)
    assert (loaded.variant, loaded.reason) == (1, Reason.LIMITED_BY_RESERVE)


def test_a_variant_that_corrections_made_slower_than_a_better_one_is_not_chosen() -> None:
    slow = Estimate(variant=1, predicted_ns=12.0, sigma=0.1)
    crowded = decide(CALM._replace(queued_ns=100.0, waiting=9, slack_ns=60), (BEST, slow))
    assert (crowded.variant, crowded.reason) == (0, Reason.MOST_ACCURATE)


def test_an_unlikely_head_is_shed_for_those_behind_it() -> None:
    # p (1 + z sigma) of the fastest is 4.658.
    hopeless = decide(CALM._replace(slack_ns=4, waiting=1))
    assert (hopeless.kind, hopeless.variant) == (DecisionKind.DROP, -1)
    assert hopeless.reason == Reason.SHED_UNLIKELY


def test_with_nobody_behind_it_runs_while_any_chance_is_left() -> None:
    last = decide(CALM._replace(slack_ns=4))
    assert (last.kind, last.variant, last.reason) == (DecisionKind.RUN, 1, Reason.LAST_CHANCE)
    # Three standard deviations of luck make it 2.8.
    assert decide(CALM._replace(slack_ns=3)).kind is DecisionKind.RUN
    assert decide(CALM._replace(slack_ns=2)).kind is DecisionKind.DROP


def test_a_correction_gone_wrong_can_heal() -> None:
    wrong = (FAST._replace(predicted_ns=4000.0),)
    assert decide(CALM._replace(hopeful_ns=4.0), wrong).kind is DecisionKind.RUN
    assert decide(CALM._replace(hopeful_ns=4000.0), wrong).kind is DecisionKind.DROP


@pytest.mark.parametrize("slack", [0, -1, -(10**9)])
def test_expired_is_dropped_and_never_most_urgent(slack: int) -> None:
    """Case 4."""
    decision = decide(CALM._replace(slack_ns=slack))
    assert (decision.kind, decision.reason) == (DecisionKind.DROP, Reason.EXPIRED)
    assert fixed(BEST, CALM._replace(slack_ns=slack), "x").reason == Reason.EXPIRED


def test_a_late_start_takes_from_the_slack_and_adds_its_own_doubt() -> None:
    assert decide(CALM._replace(slack_ns=16, start_ns=4.0)).variant == 0
    assert decide(CALM._replace(slack_ns=15, start_ns=4.0)).variant == 1
    assert decide(CALM._replace(slack_ns=16, start_ns=4.0, start_spread_ns=2.0)).variant == 1


def test_the_trip_takes_from_the_slack_but_not_from_the_last_chance() -> None:
    assert decide(CALM._replace(slack_ns=16, trip_ns=4.0)).variant == 0
    assert decide(CALM._replace(slack_ns=15, trip_ns=4.0)).variant == 1
    far = CALM._replace(slack_ns=2_000_000, trip_ns=9e6)
    assert decide(far).reason == Reason.LAST_CHANCE
    assert decide(far._replace(slack_ns=900_000)).kind is DecisionKind.DROP


def test_a_single_choice_is_called_so_and_is_no_approximation() -> None:
    decision = decide(CALM._replace(queued_ns=100.0, waiting=9), (BEST,))
    assert (decision.variant, decision.reason) == (0, Reason.ONLY_ELIGIBLE)
    assert not decision.approximation


def test_a_fixed_policy_runs_what_it_fixed() -> None:
    decision = fixed(FAST, CALM._replace(slack_ns=1, waiting=5), Reason.FIXED_CHEAP)
    assert (decision.kind, decision.variant) == (DecisionKind.RUN, 1)
    assert decision.reason == Reason.FIXED_CHEAP


def test_the_slack_of_a_deadline_less_everything_that_is_kept_for_it() -> None:
    assert slack_ns(200, 45, 12, 60, 15) == 68
    # The same request as the scheduler sees it: ways of 12 measured, one sigma of a quarter.
    estimate = Estimate(variant=0, predicted_ns=60.0, sigma=0.25)
    situation = CALM._replace(deadline_ns=200, slack_ns=155, trip_ns=12.0)
    assert spare_ns(estimate, situation, z=1.0) == 68


@pytest.mark.parametrize("start", [0.0, 3.0])
@pytest.mark.parametrize("z", [0.0, 1.645])
def test_what_spares_nothing_needs_all_of_its_time(start: float, z: float) -> None:
    situation = CALM._replace(trip_ns=2.0, start_ns=start, start_spread_ns=start / 3)
    for estimate in BOTH:
        needed = needed_ns(estimate.predicted_ns, estimate.sigma, z, 2.0 + start, start / 3)
        spare = spare_ns(estimate, situation, z)
        assert spare == pytest.approx(situation.slack_ns - needed)
