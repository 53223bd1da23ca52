"""Routing of generations: predictions by hand, and properties of the choice."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.policy.decode import (
    DecodeLoad,
    DecodeProfile,
    Demand,
    Route,
    RouteReason,
    alone_ns,
    choose,
    choose_late,
    corrected,
    fairly,
    first_token_ns,
    prompt_share,
    rank,
    step_ns,
    token_target_ns,
)

MS = 1_000_000
# A step takes 5 ms, a prompt token 2 ms, a resident 1 ms, 1,000 cached tokens 10 ms.
PROFILE = DecodeProfile(step_ns=5 * MS, prefill_ns=2 * MS, sequence_ns=MS, cached_ns=10_000)


def route(precision: str = "q4", quality: float | None = None, **changes: Any) -> Route:
    load = changes.pop("load", DecodeLoad())
    return Route(1, precision, precision, quality, PROFILE, load, **changes)


def demand(tokens: int = 10, target_ms: int = 500, **changes: Any) -> Demand:
    return Demand(
        **{
            "prompt_tokens": tokens,
            "target_ns": target_ms * MS,
            "token_ns": 50 * MS,
            "slack_ns": 10_000 * MS,
            **changes,
        }
    )


def test_an_empty_worker_takes_a_step_and_the_prompt() -> None:
    assert alone_ns(route(), 10) == 25 * MS
    assert first_token_ns(route(), 10, 50 * MS) == 25 * MS
    assert prompt_share(PROFILE, DecodeLoad(), 50 * MS) == 1.0


def test_residents_take_their_share_of_every_step() -> None:
    load = DecodeLoad(decoding=8, cached_tokens=1000)
    assert step_ns(PROFILE, load) == (5 + 8 + 10) * MS
    share = prompt_share(PROFILE, load, 50 * MS)
    assert share == pytest.approx(1 - 23 / 47.5)
    assert first_token_ns(route(load=load), 10, 50 * MS) == int((20 / share + 23) * MS)
    # They never take all of it.
    assert prompt_share(PROFILE, DecodeLoad(decoding=100), 50 * MS) == 0.1


def test_prompts_ahead_are_read_first_whether_reported_or_only_sent() -> None:
    reported = route(load=DecodeLoad(pending_prompt_tokens=30))
    sent = route(sent_tokens=30)
    expected = (2 * 40 + 5) * MS
    assert first_token_ns(reported, 10, 50 * MS) == expected == first_token_ns(sent, 10, 50 * MS)


def test_a_correction_counts_only_while_something_is_there() -> None:
    busy = route(load=DecodeLoad(pending_prompt_tokens=30), correction=2.0)
    assert first_token_ns(busy, 10, 50 * MS) == 2 * (2 * 40 + 5) * MS
    assert first_token_ns(route(correction=2.0), 10, 50 * MS) == 25 * MS


def test_a_profile_that_was_taken_on_a_busy_machine_is_corrected_down() -> None:
    assert first_token_ns(route(correction=0.5), 10, 50 * MS) == 12.5 * MS
    assert choose([route(correction=0.5)], demand(20, 30, asked=True)).routes == (0,)


def test_evidence_goes_before_precision_and_unknown_weights_come_last() -> None:
    ordered = [
        route("q4", 0.9),
        route("fp32", 0.8),
        route("fp32"),
        route("int8"),
        route("q4"),
        route("ternary"),
    ]
    shuffled = [ordered[i] for i in (3, 5, 0, 4, 2, 1)]
    assert sorted(shuffled, key=rank) == ordered


def test_the_best_variant_in_target_is_chosen_and_the_next_one_follows() -> None:
    routes = [route("q4"), route("fp32"), route("int8")]
    choice = choose(routes, demand())
    assert (choice.routes, choice.reason) == ((1, 2, 0), RouteReason.BEST)
    assert (choice.predicted_ns, choice.target_ns) == (25 * MS, 500 * MS)


def test_a_busy_better_variant_gives_way() -> None:
    busy = route("fp32", load=DecodeLoad(pending_prompt_tokens=1000))
    choice = choose([route("q4"), busy], demand())
    assert (choice.routes, choice.reason) == ((0,), RouteReason.BEST_OF_REST)


def test_of_equals_the_sooner_one_is_chosen() -> None:
    busy = route(load=DecodeLoad(pending_prompt_tokens=50))
    assert choose([busy, route()], demand()).routes == (1, 0)


def test_when_none_is_in_time_now_the_excess_is_the_time_to_wait() -> None:
    busy = route(load=DecodeLoad(pending_prompt_tokens=1000))
    choice = choose([busy], demand())
    assert (choice.routes, choice.reason) == ((), RouteReason.NOT_NOW)
    assert choice.retry_after_ns == (2 * 1010 + 5 - 500) * MS


def test_a_target_that_was_asked_and_never_holds_is_told_from_one_of_the_class() -> None:
    long = demand(1000, asked=True)
    assert choose([route()], long).reason == RouteReason.NEVER
    stretched = choose([route()], long._replace(asked=False))
    assert stretched.routes == (0,)
    assert stretched.target_ns == 2 * 2005 * MS
    slower = choose([route(correction=1.5)], long._replace(asked=False))
    assert slower.target_ns == 3 * 2005 * MS


def test_a_token_target_that_nobody_can_keep() -> None:
    # A step of one answer after ten tokens takes 6.1 ms.
    hard = demand(token_ns=6 * MS, token_asked=True)
    choice = choose([route()], hard)
    assert (choice.routes, choice.reason) == ((), RouteReason.NEVER_TOKENS)
    assert choice.token_ns == 6.1 * MS
    grown = choose([route()], hard._replace(token_asked=False))
    assert (grown.routes, grown.token_ns) == ((0,), 12.2 * MS)
    # With somebody decoding there, half of each step is left for the prompt.
    busy = route(load=DecodeLoad(decoding=1, cached_tokens=10))
    share = 1 - 6.1 / (0.95 * 12.2)
    expected = int((20 / share + 6.1) * MS)
    assert choose([busy], hard._replace(token_asked=False)).predicted_ns == expected
    slower = route("fp32")._replace(profile=DecodeProfile(7 * MS, 2 * MS))
    mixed = choose([slower, route()], hard._replace(token_ns=int(6.5 * MS)))
    assert (mixed.routes, mixed.reason) == ((1,), RouteReason.BEST_OF_REST)


def test_a_deadline_shorter_than_the_prompt_is_too_short() -> None:
    assert choose([route()], demand(slack_ns=20 * MS)).reason == RouteReason.TOO_SHORT
    late = choose_late([route()], demand(slack_ns=20 * MS))
    assert (late.routes, late.reason) == ((), RouteReason.TOO_SHORT)


def test_after_a_loss_only_the_deadline_counts() -> None:
    busy = route("fp32", load=DecodeLoad(pending_prompt_tokens=500))
    choice = choose_late([busy, route("q4")], demand(target_ns=-5 * MS))
    assert (choice.routes, choice.reason) == ((1, 0), RouteReason.DEADLINE_ONLY)
    assert choice.target_ns == 50 * MS
    patient = choose_late([busy, route("q4")], demand(target_ns=-5 * MS), patient=True)
    assert patient.routes == choice.routes
    assert patient.target_ns == demand().slack_ns // 2
    hurried = demand(target_ns=-5 * MS, slack_ns=60 * MS)
    assert choose_late([route("q4")], hurried, patient=True).target_ns == 50 * MS


def test_a_frozen_host_counts_at_most_fourfold() -> None:
    assert corrected(1.0, 2 * MS, MS) == pytest.approx(1.15)
    assert corrected(1.0, 10**12, MS) == pytest.approx(1.45)
    assert corrected(2.0, 0, MS) == pytest.approx(2.0 - 0.15 * 1.5)
    assert corrected(1.3, 5, 0.0) == 1.3


LOADS = st.builds(
    DecodeLoad,
    decoding=st.integers(0, 20),
    cached_tokens=st.integers(0, 10_000),
    pending_prompt_tokens=st.integers(0, 5000),
)
ROUTES = st.lists(
    st.builds(
        lambda quality, precision, load, sent, correction: Route(
            1, "v", precision, quality, PROFILE, load, 0, sent, correction
        ),
        st.none() | st.floats(0.0, 1.0),
        st.sampled_from(("fp32", "int8", "q4", "odd")),
        LOADS,
        st.integers(0, 1000),
        st.floats(0.25, 4.0),
    ),
    min_size=1,
    max_size=5,
)


@given(
    ROUTES,
    st.integers(1, 2000),
    st.integers(1, 2000),
    st.integers(-5, 20_000),
    st.booleans(),
)
def test_a_choice_keeps_what_it_promises(
    routes: list[Route], tokens: int, target_ms: int, slack_ms: int, asked: bool
) -> None:
    wanted = demand(tokens, target_ms, slack_ns=slack_ms * MS, asked=asked)
    choice = choose(routes, wanted)
    predicted = [first_token_ns(r, tokens, token_target_ns(r, wanted)) for r in routes]
    in_time = {i for i, ns in enumerate(predicted) if ns <= min(choice.target_ns, slack_ms * MS)}
    if choice.routes:
        assert set(choice.routes) == in_time
        ranks = [rank(routes[i]) for i in choice.routes]
        assert ranks == sorted(ranks)
        assert choice.predicted_ns == predicted[choice.routes[0]]
    else:
        assert choice.predicted_ns == min(predicted)
        if choice.reason == RouteReason.NOT_NOW:
            assert not in_time and choice.retry_after_ns > 0
    assert choice.target_ns == target_ms * MS or (not asked and choice.target_ns > target_ms * MS)


def test_others_prompts_are_ahead_only_until_it_is_the_accounts_turn() -> None:
    load = DecodeLoad(
        pending_prompt_tokens=5300, pending_by_account={"flood": 5000, "calm": 100, "own": 200}
    )
    crowded = route(load=load)
    assert fairly(crowded, "own", 300).load.pending_prompt_tokens == 200 + 500 + 100
    assert fairly(crowded, "flood", 300).load.pending_prompt_tokens == 5000 + 100 + 200
    assert fairly(crowded, "new", 40).load.pending_prompt_tokens == 40 + 40 + 40
    assert fairly(crowded, "", 300) is crowded
    # Of an account with twice the weight twice as much is before it, and the other way round.
    weights = {"own": 2.0, "flood": 1.0}
    assert fairly(crowded, "own", 300, weights).load.pending_prompt_tokens == 200 + 250 + 100
    assert fairly(crowded, "new", 40, {"flood": 2.0}).load.pending_prompt_tokens == 80 + 40 + 40
    alone = route(load=DecodeLoad(pending_prompt_tokens=9))
    assert fairly(alone, "own", 300) is alone
