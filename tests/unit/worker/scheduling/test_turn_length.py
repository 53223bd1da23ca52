"""A step between accounts has one length at most, whatever one of them has waiting or writes."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.worker.scheduling.arena import MS, World, arrival
from worker.scheduling.blocks import BLOCK_TOKENS
from worker.scheduling.cost import StepCost, load_of
from worker.scheduling.invariants import violations
from worker.scheduling.records import Arrival, Step

TURN_NS = 12 * MS
COST = StepCost(step_us=2000, prefill_us_per_token=300, sequence_us=400, cached_us_per_token=0.5)
# 40 tokens of prompts.
MOST = 40


@dataclass(frozen=True)
class Ask:
    """One sequence of a random account."""

    account: str
    prompt: int
    limit: int


def make(accounts: list[str]) -> st.SearchStrategy[list[Ask]]:
    ask = st.builds(Ask, st.sampled_from(accounts), st.integers(1, 200), st.integers(1, 40))
    return st.lists(ask, min_size=1, max_size=40)


class Recalling(World):
    """A world with room for all that knows how long prompts are."""

    def __init__(self, account_bound_ns: int = 20 * MS) -> None:
        super().__init__(
            blocks=1024,
            cost=COST,
            context=256,
            account_step_ns=TURN_NS,
            account_bound_ns=account_bound_ns,
            prefix_cache=False,
        )
        self.prompts: dict[int, int] = {}

    def submit(self, newcomer: Arrival) -> None:
        self.prompts[newcomer.sequence_id] = len(newcomer.prompt)
        super().submit(newcomer)


def submit(there: Recalling, asks: list[Ask], first: int) -> None:
    for number, ask in enumerate(asks, first):
        there.submit(
            arrival(
                number,
                ask.prompt,
                account=ask.account,
                tenant=ask.account,
                max_new_tokens=ask.limit,
                arrived_ns=there.now_ns,
            )
        )


def excess(there: Recalling, step: Step) -> float:
    """By how many ns rows and prompts of a step take more than they may."""
    cost = there.scheduler.cost
    rows = [part for part in step.parts if part.past >= there.prompts[part.sequence_id]]
    read = sum(len(part.tokens) for part in step.parts) - len(rows)
    took = cost.rest_ns(len(rows), load_of(rows).cached) - cost.rest_ns(0, 0)
    # A block is read whatever decodes, a token more of who must get on.
    return cost.token_ns * read - max(TURN_NS - took, (BLOCK_TOKENS + 1) * cost.token_ns)


@settings(max_examples=60, deadline=None)
@given(make(["a", "b", "c"]))
def test_no_step_between_accounts_is_longer_than_a_turn(asks: list[Ask]) -> None:
    there = Recalling()
    left, number = list(asks), 0
    while True:
        # Some come while others are read and written.
        submit(there, left[:3], number)
        number += len(left[:3])
        left = left[3:]
        step = there.plan()
        if step is None and not left:
            break
        if step is not None and step.parts:
            assert excess(there, step) <= 1.0
            there.complete(step)
        assert violations(there.scheduler.snapshot()) == []
    assert len(there.ended) == len(asks)


@settings(max_examples=40, deadline=None)
@given(make(["flood"]), st.integers(0, 30))
def test_what_was_lent_is_back_with_the_next_step(asks: list[Ask], steps: int) -> None:
    there = Recalling(account_bound_ns=0)
    submit(there, asks, 0)
    for _ in range(steps):
        there.step()
    lent = there.plan()
    # The owner comes while a step runs that has the flood alone in it.
    submit(there, [Ask("steady", 32, 8)], 1000)
    if lent is not None and lent.parts:
        assert excess(there, lent) <= 1.0
        there.complete(lent)
    step = there.plan()
    assert step is not None
    assert 1000 in {part.sequence_id for part in step.parts}
    assert excess(there, step) <= 1.0


def test_what_decodes_takes_from_what_is_read() -> None:
    read = []
    for rows in (0, 10):
        there = Recalling()
        submit(there, [Ask("a", 1, 40)] * rows, 0)
        if rows:
            assert there.step() is not None
        submit(there, [Ask("b", 200, 1)], 100)
        step = there.plan()
        assert step is not None
        read += [len(part.tokens) for part in step.parts if part.sequence_id == 100]
    # 10 rows of 0.4 ms and the token each attends to are 13.4 tokens of 0.3 ms.
    assert read == [MOST, MOST - 14]


def test_without_accounts_steps_are_as_long_as_ever() -> None:
    there = Recalling()
    submit(there, [Ask("", 200, 1)], 0)
    step = there.plan()
    assert step is not None
    assert len(step.parts[0].tokens) == 200
