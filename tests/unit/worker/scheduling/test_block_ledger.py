"""The ledger of KV blocks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.scheduling.blocks import (
    BlockLedger,
    LedgerSnapshot,
    OutOfBlocks,
    blocks_for,
    violations,
)


def test_allocation_is_all_or_nothing() -> None:
    ledger = BlockLedger(3)
    assert ledger.allocate(2) == (0, 1)
    with pytest.raises(OutOfBlocks, match="2 blocks are wanted, 1 are free") as refused:
        ledger.allocate(2)
    assert (refused.value.wanted, refused.value.free) == (2, 1)
    assert ledger.free == 1
    assert ledger.allocate(0) == ()


def test_a_block_is_free_when_its_last_reference_goes() -> None:
    ledger = BlockLedger(4)
    first = ledger.allocate(2)
    ledger.retain([first[0]])
    assert ledger.release(first) == (1,)
    assert ledger.references(0) == 1
    assert ledger.release([0]) == (0,)
    assert ledger.allocate(1) == (0,)


@pytest.mark.parametrize("blocks", [[0, 1], [2], [-1], [0, 0]])
def test_references_that_do_not_exist_cannot_be_dropped(blocks: list[int]) -> None:
    ledger = BlockLedger(2)
    ledger.allocate(1)
    before = ledger.snapshot()
    with pytest.raises(ValueError, match="references"):
        ledger.release(blocks)
    assert ledger.snapshot() == before


def test_a_free_block_cannot_be_shared() -> None:
    ledger = BlockLedger(2)
    ledger.allocate(1)
    with pytest.raises(ValueError, match="block 1 has 0 references"):
        ledger.retain([0, 1])
    assert ledger.references(0) == 1
    with pytest.raises(ValueError, match="at least 1"):
        BlockLedger(0)


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (16, 1), (17, 2), (160, 10)])
def test_blocks_for_tokens(tokens: int, blocks: int) -> None:
    assert blocks_for(tokens) == blocks


def test_violations_name_what_is_wrong() -> None:
    assert violations(LedgerSnapshot((1, 0), (1,))) == []
    found = violations(LedgerSnapshot((1, 0, -1), (0, 0, 7)))
    assert found == [
        "block 0 has 1 references and is 2 times free",
        "block 1 has 0 references and is 0 times free",
        "block 2 has -1 references",
        "block 7 is free and does not exist",
    ]


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5)), max_size=60))
def test_any_history_keeps_the_ledger_sound(history: list[tuple[int, int]]) -> None:
    ledger = BlockLedger(6)
    held: list[int] = []
    for kind, number in history:
        if kind == 0 and number <= ledger.free:
            held += ledger.allocate(number)
        elif kind == 1 and held:
            block = held[number % len(held)]
            ledger.retain([block])
            held.append(block)
        elif kind == 2 and held:
            ledger.release([held.pop(number % len(held))])
        snapshot = ledger.snapshot()
        assert violations(snapshot) == []
        assert sum(snapshot.references) == len(held)
    ledger.release(held)
    assert ledger.free == 6


def test_a_storm_of_two_hundred_thousand_operations() -> None:
    random = np.random.default_rng(1)
    ledger = BlockLedger(128)
    held: list[tuple[int, ...]] = []
    kinds, numbers = random.integers(0, 3, 200_000), random.random(200_000)
    for step, (kind, number) in enumerate(zip(kinds.tolist(), numbers.tolist(), strict=True)):
        if kind == 0 and ledger.free:
            held.append(ledger.allocate(1 + int(number * min(ledger.free, 8))))
        elif kind == 1 and held and len(held) < 200:
            shared = held[int(number * len(held))]
            ledger.retain(shared)
            held.append(shared)
        elif kind == 2 and held:
            ledger.release(held.pop(int(number * len(held))))
        if step % 5000 == 0:
            assert violations(ledger.snapshot()) == []
    for blocks in held:
        ledger.release(blocks)
    assert violations(ledger.snapshot()) == []
    assert ledger.free == 128
