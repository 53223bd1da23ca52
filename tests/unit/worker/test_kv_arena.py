"""The engine's arena through its Python view, and its agreement with the scheduler's ledger."""

from __future__ import annotations

import numpy as np
import pytest

from worker.errors import EngineFault, InvalidInput
from worker.kv_arena import KV_BLOCK_TOKENS, KvArena, KvStats
from worker.scheduling.blocks import BLOCK_TOKENS, BlockLedger


def small_arena(blocks: int) -> KvArena:
    return KvArena(layers=1, kv_heads=1, head_dim=8, blocks=blocks)


def test_both_ledgers_agree_after_every_one_of_two_hundred_thousand_operations() -> None:
    assert BLOCK_TOKENS == KV_BLOCK_TOKENS
    random = np.random.default_rng(2)
    ledger, arena = BlockLedger(64), small_arena(64)
    held: list[tuple[int, ...]] = []
    kinds, numbers = random.integers(0, 3, 200_000), random.random(200_000)
    for step, (kind, number) in enumerate(zip(kinds.tolist(), numbers.tolist(), strict=True)):
        # The arena refuses what the ledger would not have allowed, so each call is a check.
        if kind == 0 and ledger.free:
            taken = ledger.allocate(1 + int(number * min(ledger.free, 6)))
            arena.acquire(taken, step % 3)
            held.append(taken)
        elif kind == 1 and held and len(held) < 100:
            shared = held[int(number * len(held))]
            ledger.retain(shared)
            arena.retain(shared)
            held.append(shared)
        elif kind == 2 and held:
            dropped = held.pop(int(number * len(held)))
            ledger.release(dropped)
            arena.release(dropped)
        if step % 500 == 0:
            assert arena.references() == ledger.snapshot().references
            assert arena.stats().used == 64 - ledger.free
    assert arena.references() == ledger.snapshot().references


def test_changes_that_do_not_fit_are_refused_whole() -> None:
    arena = small_arena(3)
    arena.acquire([0], 1)
    with pytest.raises(InvalidInput, match="block 0 is not free"):
        arena.acquire([1, 0], 1)
    with pytest.raises(InvalidInput, match="block 2 is free"):
        arena.retain([0, 2])
    with pytest.raises(InvalidInput, match="released more often"):
        arena.release([0, 0])
    with pytest.raises(InvalidInput, match="block 1 is free"):
        arena.copy(0, 1)
    assert arena.references() == (1, 0, 0)


def test_statistics_count_blocks_and_owners() -> None:
    arena = small_arena(4)
    assert arena.stats().fragmentation == 0
    arena.acquire([0, 1], 1)
    arena.retain([1])
    arena.release([0])
    arena.acquire([0], 2)
    stats = arena.stats()
    assert (stats.blocks, stats.used, stats.shared, stats.zeroed) == (4, 2, 1, 1)
    assert stats.bytes == 4 * 2 * 8 * 16 * 2
    assert stats.fragmentation == 1
    half_full = KvStats(4, 2, 0, 8, 0, 0, False)
    assert half_full.fragmentation == 0.75


def test_sizes_without_sense_are_refused() -> None:
    with pytest.raises(InvalidInput, match="kv_heads is 0"):
        KvArena(layers=1, kv_heads=0, head_dim=8, blocks=1)
    with pytest.raises(EngineFault, match="out of memory"):
        KvArena(layers=1 << 20, kv_heads=1 << 20, head_dim=64, blocks=1 << 20)
