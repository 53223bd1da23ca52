"""Turns between accounts, within a bound, whatever one of them sends; its share of the cache."""

from __future__ import annotations

from contextlib import suppress
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.worker.scheduling.arena import COST, MS, World, arrival
from worker.scheduling.cost import StepCost
from worker.scheduling.fairness import AccountClocks
from worker.scheduling.invariants import violations
from worker.scheduling.pool import BlockPool
from worker.scheduling.records import Refused, Step

BOUND_NS = 100 * MS


def test_who_comes_later_starts_where_the_least_served_waits() -> None:
    clocks = AccountClocks(10)
    clocks.begin("a")
    clocks.promise("a", 100.0)
    clocks.serve("a", 60.0, 0.0)
    clocks.begin("b")
    # What a has yet to take is no head start of b's, and no debt of a's either.
    assert clocks.waiting() == {"a": 100.0, "b": 60.0}
    clocks.release("a", 40.0)
    assert clocks.waiting() == {"a": 60.0, "b": 60.0}
    clocks.serve("a", 0.0, 5.0)
    assert clocks.waiting()["a"] == 65.0
    clocks.end("a")
    clocks.end("b")
    clocks.begin("c")
    assert clocks.waiting() == {"c": 60.0}
    assert clocks.several
    clocks.reset()
    assert not clocks.several


def test_a_rest_earns_no_credit_and_no_debt_is_forgotten() -> None:
    clocks = AccountClocks(10)
    for account in "ab":
        clocks.begin(account)
    clocks.promise("a", 50.0)
    clocks.serve("a", 50.0, 0.0)
    clocks.end("a")
    clocks.promise("b", 20.0)
    clocks.serve("b", 20.0, 0.0)
    clocks.begin("a")
    assert clocks.waiting() == {"a": 50.0, "b": 20.0}


def test_work_counts_by_the_weight_of_its_account() -> None:
    clocks = AccountClocks(10)
    clocks.begin("heavy", 2.0)
    clocks.begin("light", 0.5)
    for account in ("heavy", "light"):
        clocks.promise(account, 100.0)
    assert clocks.waiting() == {"heavy": 50.0, "light": 200.0}
    clocks.serve("heavy", 60.0, 20.0)
    clocks.release("heavy", 40.0)
    assert clocks.waiting()["heavy"] == 40.0
    assert clocks.owed("heavy") == 0.0
    # A new weight holds for what it is owed from then on, not for what it was served.
    clocks.begin("light", 1.0)
    assert clocks.waiting()["light"] == 100.0


def test_more_accounts_wait_than_are_remembered_at_rest() -> None:
    clocks = AccountClocks(10)
    names = [f"account-{number}" for number in range(300)]
    for name in names:
        clocks.begin(name)
    assert clocks.waiting() == dict.fromkeys(names, 0.0)
    for name in names:
        clocks.promise(name, 5.0)
        clocks.end(name)
        clocks.serve(name, 5.0, 0.0)
    assert not clocks.waiting()


def test_an_account_that_decodes_beyond_its_promise_may_have_been_forgotten() -> None:
    clocks = AccountClocks(10)
    for account, work in (("a", 10.0), ("b", 100.0)):
        clocks.begin(account)
        clocks.promise(account, work)
        clocks.serve(account, work, 0.0)
    # Whoever comes now starts ahead of a, which is owed nothing.
    clocks.end("a")
    for number in range(300):
        clocks.begin(f"account-{number}")
    clocks.serve("a", 0.0, 5.0)
    assert clocks.owed("a") == 0.0
    assert clocks.beyond("a") == 5.0


def test_what_rounding_leaves_of_promises_keeps_nobody_remembered() -> None:
    clocks = AccountClocks(10)
    clocks.begin("steady")
    for number in range(2000):
        clocks.promise("steady", 1e9)
        clocks.serve("steady", 1e9, 0.0)
        account = f"account-{number}"
        clocks.begin(account)
        works = (1e9 / 3, 1e9 / 7, 7e8 / 3)
        for work in works:
            clocks.promise(account, work)
        for work in works:
            clocks.serve(account, work, 0.0)
        assert clocks.owed(account) > 0.0
        clocks.end(account)
    assert len(clocks) < 300


def first_tokens(world: World, account: str, number: int) -> int:
    """When a newcomer of the account with a short prompt has its first token, from now."""
    begun = world.now_ns
    world.submit(arrival(number, 32, account=account, tenant=account, arrived_ns=begun))
    while number not in world.answers:
        assert world.step() is not None
    return world.now_ns - begun


@pytest.mark.parametrize("apart", [False, True])
def test_a_flood_of_long_prompts_holds_up_its_own_account(apart: bool) -> None:
    world = World(blocks=512)
    for number in range(12):
        world.submit(arrival(number, 400, account="flood" if apart else "", tenant="flood"))
    world.step()
    took = first_tokens(world, "steady" if apart else "", 100)
    alone = first_tokens(World(blocks=512), "steady", 100)
    if apart:
        # What runs when it comes is finished first: one step.
        longest = COST.step_us * 1e3 + 256 * COST.prefill_us_per_token * 1e3
        assert took <= alone + 2 * longest
    else:
        assert took > 5 * alone


def test_a_target_is_judged_by_whose_turn_it_is() -> None:
    def offer(steady: str, flood: str) -> bool:
        world = World(blocks=512)
        # As many as can have their first token in time.
        with suppress(Refused):
            for number in range(100):
                world.submit(
                    arrival(
                        number,
                        400,
                        account=flood,
                        tenant="flood",
                        first_token_target_ns=5000 * MS,
                    )
                )
        world.step()
        newcomer = arrival(
            100,
            200,
            account=steady,
            tenant="steady",
            arrived_ns=world.now_ns,
            first_token_target_ns=1500 * MS,
        )
        try:
            world.submit(newcomer)
        except Refused:
            return False
        while 100 not in world.answers:
            assert world.step() is not None
        return world.now_ns - newcomer.arrived_ns <= newcomer.first_token_target_ns

    assert not offer("", "")
    assert offer("steady", "flood")


@pytest.mark.parametrize(("room", "place"), [(1.0, False), (0.5, True)])
def test_a_flood_leaves_the_room_in_steps_that_others_reserved(room: float, place: bool) -> None:
    # A step of 6.6 ms and 1.15 ms for each sequence, of at most 0.95 * 0.8 * 20 ms.
    world = World(blocks=512)
    for number in range(20):
        world.submit(
            arrival(
                number,
                16,
                account="flood",
                tenant="flood",
                token_target_ns=20 * MS,
                max_new_tokens=100,
                account_room=room,
            )
        )
    for _ in range(10):
        world.step()
    world.submit(
        arrival(
            100,
            16,
            account="steady",
            tenant="steady",
            token_target_ns=20 * MS,
            account_room=0.5,
        )
    )
    world.step()
    views = world.scheduler.snapshot().sequences
    there = [view.sequence_id for view in views if view.blocks]
    assert (100 in there) is place
    # Half of 15.2 - 6.6 ms, or all of it, with what they attend to.
    assert len([number for number in there if number < 100]) == (3 if place else 6)


def test_prompts_of_accounts_take_a_turn_of_a_step() -> None:
    for account, longest in (("", 256), ("a", 26)):
        world = World(blocks=512)
        world.submit(arrival(0, 400, account=account, tenant="a"))
        step = world.step()
        assert step is not None
        # 40 ms are 26 tokens of 1.5 ms.
        assert len(step.parts[0].tokens) == longest


class Bound:
    """How far one account may be ahead of another, from what was seen so far."""

    def __init__(self, world: World, largest: tuple[int, int]) -> None:
        self._world = world
        self._prompt, self._limit = largest
        self._charge = 0.0
        self._owed = 0.0
        # What an account had been served beyond its promises when it was last let in.
        self._beyond: dict[str, float] = {}

    def plan(self) -> Step | None:
        """The next step, with a look at who was let in for it."""
        clocks, cost = self._world.scheduler.clocks, self._world.scheduler.cost
        before = {account: clocks.owed(account) for account in ACCOUNTS}
        # The most that one can be foreseen to take, computed again to its last token.
        tokens = self._prompt + self._limit
        charge = cost.token_ns * tokens + self._limit * cost.join_ns(tokens)
        self._charge = max(self._charge, charge)
        step = self._world.plan()
        for account in ACCOUNTS:
            self._owed = max(self._owed, clocks.owed(account))
            if clocks.owed(account) > before[account]:
                self._beyond[account] = clocks.beyond(account)
        return step

    def excess(self) -> float:
        """By how much two that wait are further apart than they may be, at most; below 0 is well.

        Of what the one behind was owed when the other was last let in, all may have been released.
        """
        clocks = self._world.scheduler.clocks
        worst = -float("inf")
        for (one, time), (_, behind) in permutations(clocks.waiting().items(), 2):
            beyond = max(0.0, clocks.beyond(one) - self._beyond.get(one, 0.0))
            allowed = BOUND_NS + self._charge + 2 * self._owed + beyond
            worst = max(worst, time - behind - allowed)
        return worst


ACCOUNTS = "abc"


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(ACCOUNTS),
            st.integers(1, 200),
            st.integers(1, 40),
            st.sampled_from([0.5, 1.0, 1.7]),
        ),
        min_size=1,
        max_size=60,
    ),
)
def test_no_account_is_further_ahead_than_the_bound(
    asks: list[tuple[str, int, int, float]],
) -> None:
    cost = StepCost(
        step_us=2000, prefill_us_per_token=300, sequence_us=400, cached_us_per_token=0.5
    )
    world = World(blocks=48, cost=cost, context=256, account_bound_ns=BOUND_NS, pass_limit=4)
    bound = Bound(world, (200, 40))
    left = list(enumerate(asks))
    while True:
        # Several come at a time, so that they wait for each other.
        stretch = left[0][1][3] if left else 1.0
        for number, (account, prompt, limit, _) in left[:5]:
            world.submit(
                arrival(number, prompt, account=account, tenant=account, max_new_tokens=limit)
            )
        left = left[5:]
        step = bound.plan()
        assert bound.excess() <= 1.0
        if step is not None and step.parts:
            run(world, step, stretch)
            assert bound.excess() <= 1.0
        elif step is None and not left:
            break
        assert violations(world.scheduler.snapshot()) == []
    assert len(world.ended) == len(asks)
    assert not world.scheduler.clocks.waiting()


def run(world: World, step: Step, stretch: float) -> None:
    """The step takes so many times what was predicted."""
    world.arena.run(step.parts, complete=True)
    took = int(stretch * step.predicted_ns)
    world.now_ns += took
    tokens = {p.sequence_id: p.past + len(p.tokens) for p in step.parts if p.wants_logits}
    world.ended += world.scheduler.completed(step, tokens, world.now_ns, took)


@pytest.mark.parametrize("weight", [1.0, 3.0])
def test_over_a_long_time_two_that_always_wait_are_served_by_their_weights(weight: float) -> None:
    world = World(blocks=64, context=256, account_bound_ns=BOUND_NS)
    weights = {"greedy": 1.0, "modest": weight}
    served = {"greedy": 0, "modest": 0}
    number = 0
    owner: dict[int, str] = {}

    def refill() -> None:
        nonlocal number
        # The greedy one keeps more waiting, and twice as long.
        for account, many, prompt in (("greedy", 20, 128), ("modest", 6, 64)):
            for _ in range(many - sum(1 for a in waiting() if a == account)):
                owner[number] = account
                world.submit(
                    arrival(
                        number,
                        prompt,
                        account=account,
                        tenant=account,
                        account_weight=weights[account],
                    )
                )
                number += 1

    def waiting() -> list[str]:
        views = world.scheduler.snapshot().sequences
        return [owner[view.sequence_id] for view in views if not view.blocks]

    for _ in range(600):
        refill()
        assert world.step() is not None
    for ended in world.ended:
        served[owner[ended.sequence_id]] += ended.record.prefill_ns + ended.record.decode_ns
    assert weight * served["greedy"] / served["modest"] == pytest.approx(1.0, abs=0.1)


def test_a_priced_sequence_is_promised_the_answer_that_it_is_expected_to_write() -> None:
    owed = []
    for price in (1.0, 2.0, 8.0):
        world = World(blocks=512)
        for number in range(30):
            # Usual answers come to half of their limit.
            world.submit(arrival(number, 16, max_new_tokens=100))
            while world.scheduler.record(number).generated_tokens < 50:
                world.step()
            world.scheduler.finish(number)
        world.submit(arrival(99, 16, account="a", max_new_tokens=400, work_price=price))
        world.step()
        owed.append(world.scheduler.clocks.owed("a"))
    # Half of 400 tokens less what the prompt takes, and the longest it may write.
    assert owed[1] == pytest.approx(1.8 * owed[0], rel=0.12)
    assert owed[2] < 1.2 * owed[1]


def test_a_priced_sequence_does_not_move_what_usual_ones_are_expected_to_write() -> None:
    world = World(blocks=512)
    for number in range(60):
        price = 2.0 if number % 2 else 1.0
        world.submit(arrival(number, 16, max_new_tokens=100, work_price=price))
        while world.scheduler.record(number).generated_tokens < 40 * price:
            world.step()
        world.scheduler.finish(number)
    owed = {}
    for number, price in ((98, 1.0), (99, 2.0)):
        account = f"a{number}"
        world.submit(arrival(number, 16, account=account, max_new_tokens=400, work_price=price))
        world.step()
        owed[price] = world.scheduler.clocks.owed(account)
    # 0.4 of 400 tokens at 1.15 ms and what they attend to; twice as many attend to more each.
    assert owed[1.0] == pytest.approx(160 * 1.35 * MS, rel=0.1)
    assert 2.0 * owed[1.0] < owed[2.0] < 2.6 * owed[1.0]


def publish(pool: BlockPool, account: str, text: int, count: int, most: int) -> list[int]:
    """A sequence of so many blocks of a text is computed, cached as far as it may be, and ends."""
    blocks = list(pool.take(account, count))
    for place in range(count):
        tokens = tuple(range(1000 * text + 16 * place, 1000 * text + 16 * place + 16))
        cached = pool.publish(
            account, blocks[:place], tokens, blocks[place], account=account, most=most
        )
        if cached < 0:
            break
        blocks[place] = cached
    pool.give_back(blocks)
    return blocks


def test_an_account_has_its_share_of_the_prefix_cache() -> None:
    pool = BlockPool(16, prefix_cache=True, account_share=0.25)
    assert pool.account_most == 4
    publish(pool, "a", 0, 3, 4)
    for text in range(1, 6):
        publish(pool, "b", text, 2, 4)
        assert pool.use().cached["b"] <= 4
    # The flood of b took nothing of what a has cached, and of its own the latest is left.
    assert pool.use().cached == {"a": 3, "b": 4}
    assert len(pool.match("a", range(0, 49))) == 3
    assert len(pool.match("b", range(5000, 5033))) == 2
    assert len(pool.match("b", range(1000, 1033))) == 0


def test_what_is_held_cannot_make_room_and_is_not_cached_beyond_the_share() -> None:
    pool = BlockPool(16, prefix_cache=True, account_share=0.25)
    publish(pool, "b", 1, 8, 4)
    assert pool.use().cached == {"b": 4}
    assert pool.free == 12
    # A text that is cached already takes no room.
    publish(pool, "b", 1, 4, 4)
    assert pool.use().cached == {"b": 4}


def test_one_account_alone_may_fill_the_cache() -> None:
    world = World(blocks=32, context=256, prefix_share=0.25)
    for number in range(4):
        world.submit(arrival(number, 96, account="only", tenant="only", max_new_tokens=2))
    world.drain()
    assert world.scheduler.arena_use().cached["only"] > 8
    world.submit(arrival(10, 160, account="other", tenant="other", max_new_tokens=20))
    world.submit(arrival(11, 96, account="only", tenant="only", max_new_tokens=2))
    world.drain()
    assert world.scheduler.arena_use().cached["other"] <= 8


def test_prompts_get_on_after_so_many_turns_of_decoding() -> None:
    # A step alone is as long as the target: the pace leaves prompts nothing.
    cost = StepCost(step_us=20_000, prefill_us_per_token=500, sequence_us=10_000,
                    cached_us_per_token=0)  # fmt: skip
    world = World(blocks=256, cost=cost, decode_turns=6, pass_limit=64)
    pace = {"token_target_ns": 40 * MS}
    for number in range(2):
        world.submit(arrival(number, 16, max_new_tokens=200, **pace))
    for _ in range(6):
        world.step()
    world.submit(arrival(2, 64, max_new_tokens=4))
    between, longest = 0, 0
    while 2 not in world.answers:
        step = world.step()
        assert step is not None
        read = any(part.sequence_id == 2 for part in step.parts)
        between = 0 if read else between + 1
        longest = max(longest, between)
    assert longest <= 6 + 1
