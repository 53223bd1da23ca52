"""KV blocks: what is reserved stays free for its owner, the rest is lent."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from controlplane.policy.tenancy.accounts import Account
from controlplane.policy.tenancy.blocks import Verdict, hold_verdict, turn_room
from controlplane.tenants import TenantConfig


def account(reserved: int, held: int, borrow: int = -1, most: int = 0, opened: int = 0) -> Account:
    made = Account("x", TenantConfig(kv_block_s_per_s=reserved, borrow_kv_block_s_per_s=borrow,
                                     max_generations=most))  # fmt: skip
    made.held_blocks, made.open = held, opened
    return made


def test_room_in_steps_is_what_others_have_not_reserved() -> None:
    assert turn_room(account(40, 0), [account(50, 0), account(0, 0)], 100) == 0.5
    assert turn_room(account(40, 0), [account(80, 0)], 100) == 0.4
    # Whoever reserved nothing has what is left, if anything.
    assert turn_room(account(0, 0), [account(100, 0)], 100) == 0.01
    # Nobody reserved anything, or nobody knows yet how much there is.
    assert turn_room(account(40, 0), [account(0, 0)], 100) == 1.0
    assert turn_room(account(40, 0), [account(50, 0)], 0) == 1.0


@pytest.mark.parametrize(
    ("mine", "other", "needed", "verdict", "most"),
    [
        # Within the reservation whatever the other one holds.
        (account(40, 30), account(10, 90), 10, Verdict.HOLDS, 40),
        # Beyond it only what the other one has not reserved.
        (account(10, 0), account(60, 0), 40, Verdict.HOLDS, 40),
        (account(10, 5), account(60, 0), 40, Verdict.TOO_MUCH, 40),
        (account(10, 0), account(60, 0), 41, Verdict.NEVER, 40),
        (account(10, 0), account(60, 70), 31, Verdict.TOO_MUCH, 30),
        # Borrowing may be bounded, known total or not.
        (account(10, 0, borrow=5), account(0, 0), 15, Verdict.HOLDS, 15),
        (account(10, 0, borrow=5), account(0, 0), 16, Verdict.NEVER, 15),
        (account(0, 0, most=2, opened=2), account(0, 0), 1, Verdict.TOO_MANY, 0),
    ],
)
def test_verdicts(mine: Account, other: Account, needed: int, verdict: Verdict, most: int) -> None:
    assert hold_verdict(mine, [other], needed, 100) == (verdict, most)


def test_without_a_known_total_only_the_own_terms_bound() -> None:
    assert hold_verdict(account(0, 7), [account(60, 0)], 1000, 0)[0] is Verdict.HOLDS
    assert hold_verdict(account(5, 0, borrow=0), [], 6, 0) == (Verdict.NEVER, 5)


def test_where_nobody_has_reserved_any_only_the_own_terms_bound() -> None:
    full = account(0, 90)
    # Those of a full arena wait on its worker, in turn with others.
    assert hold_verdict(full, [account(0, 40)], 50, 100)[0] is Verdict.HOLDS
    assert hold_verdict(account(0, 0), [full], 20, 100)[0] is Verdict.HOLDS
    assert hold_verdict(account(0, 4, borrow=5), [full], 1, 100) == (Verdict.HOLDS, 5)
    assert hold_verdict(account(0, 4, borrow=5), [full], 2, 100) == (Verdict.TOO_MUCH, 5)
    # One reservation, of whomever, and there is something to keep free.
    assert hold_verdict(full, [account(1, 0)], 50, 100) == (Verdict.TOO_MUCH, 99)
    assert hold_verdict(account(1, 90), [account(0, 0)], 50, 100) == (Verdict.TOO_MUCH, 100)


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(-1, 30)), min_size=2, max_size=4),
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 30), st.booleans()), max_size=80),
)
def test_a_reservation_can_always_be_used(
    terms: list[tuple[int, int]], asks: list[tuple[int, int, bool]]
) -> None:
    assume(any(reserved for reserved, _ in terms))
    accounts = [account(reserved, 0, borrow) for reserved, borrow in terms]
    total = sum(reserved for reserved, _ in terms) + 20
    for who, blocks, ends in asks:
        mine = accounts[who % len(accounts)]
        others = [each for each in accounts if each is not mine]
        if ends:
            mine.held_blocks -= min(blocks, mine.held_blocks)
        elif hold_verdict(mine, others, blocks, total)[0] is Verdict.HOLDS:
            mine.held_blocks += blocks
        assert sum(each.held_blocks for each in accounts) <= total
        free = total - sum(each.held_blocks for each in accounts)
        unused = sum(max(0, a.config.kv_block_s_per_s - a.held_blocks) for a in accounts)
        assert unused <= free
