"""The prefix cache and the pool of blocks around it."""

from __future__ import annotations

import pytest

from worker.scheduling.blocks import OutOfBlocks
from worker.scheduling.pool import BlockPool
from worker.scheduling.prefix import PrefixCache
from worker.scheduling.records import Change

_TEXT = list(range(64))


def _publish(pool: BlockPool, tenant: str, blocks: list[int], text: list[int]) -> list[int]:
    chain: list[int] = []
    for place, block in enumerate(blocks):
        tokens = tuple(text[16 * place : 16 * place + 16])
        chain.append(pool.publish(tenant, chain, tokens, block))
    return chain


def test_a_prefix_is_found_up_to_where_texts_part() -> None:
    pool = BlockPool(8, prefix_cache=True)
    blocks = list(pool.take("a", 3))
    assert _publish(pool, "a", blocks, _TEXT) == blocks
    assert pool.match("a", _TEXT) == blocks
    assert pool.match("a", [*_TEXT[:40], 999, *_TEXT[41:]]) == blocks[:2]
    assert pool.match("a", [999, *_TEXT[1:]]) == []


def test_the_last_token_is_never_taken_from_the_cache() -> None:
    pool = BlockPool(8, prefix_cache=True)
    blocks = _publish(pool, "a", list(pool.take("a", 3)), _TEXT)
    assert pool.match("a", _TEXT[:48]) == blocks[:2]
    assert pool.match("a", _TEXT[:49]) == blocks
    assert pool.match("a", _TEXT[:16]) == []


def test_another_tenant_finds_nothing() -> None:
    pool = BlockPool(8, prefix_cache=True)
    _publish(pool, "a", list(pool.take("a", 3)), _TEXT)
    assert pool.match("b", _TEXT) == []


def test_owners_are_numbered_by_tenant() -> None:
    pool = BlockPool(4, prefix_cache=False)
    for tenant in ("a", "b", "a"):
        pool.take(tenant, 1)
    owners = [change.owner for change in pool.drain()]
    assert owners[0] == owners[2] != owners[1]
    pool.forget_tenants({"a"})
    assert pool.tenants == 1


def test_cached_blocks_stay_until_they_are_wanted_the_oldest_end_first() -> None:
    pool = BlockPool(4, prefix_cache=True)
    first = _publish(pool, "a", list(pool.take("a", 2)), _TEXT)
    pool.give_back(first)
    second = _publish(pool, "a", list(pool.take("a", 1)), _TEXT[32:])
    pool.give_back(second)
    assert (pool.free, pool.evictable, pool.available) == (1, 3, 4)
    pool.drain()
    pool.take("b", 2)
    released = [c.blocks for c in pool.drain() if c.kind == Change.RELEASE]
    assert released == [(first[1],)]
    assert pool.match("a", _TEXT) == first[:1]
    pool.take("b", 2)
    assert pool.match("a", _TEXT) == pool.match("a", _TEXT[32:]) == []
    with pytest.raises(OutOfBlocks):
        pool.take("b", 1)


def test_what_somebody_uses_is_not_evicted() -> None:
    pool = BlockPool(3, prefix_cache=True)
    chain = _publish(pool, "a", list(pool.take("a", 2)), _TEXT)
    pool.give_back(chain)
    pool.share(chain[:1])
    assert pool.available == 2
    pool.take("a", 2)
    with pytest.raises(OutOfBlocks, match="1 blocks are wanted, 0 are free"):
        pool.take("a", 1)
    assert pool.match("a", _TEXT[:17]) == chain[:1]


def test_who_computed_the_same_goes_on_with_the_cached_block() -> None:
    pool = BlockPool(4, prefix_cache=True)
    mine, yours = pool.take("a", 1) + pool.take("a", 1)
    assert pool.publish("a", [], tuple(_TEXT[:16]), mine) == mine
    pool.drain()
    assert pool.publish("a", [], tuple(_TEXT[:16]), yours) == mine
    assert [(c.kind, c.blocks) for c in pool.drain()] == [
        (Change.RETAIN, (mine,)),
        (Change.RELEASE, (yours,)),
    ]
    assert pool.references(mine) == 3


def test_a_pool_without_cache_keeps_nothing() -> None:
    pool = BlockPool(2, prefix_cache=False)
    block = pool.take("a", 1)[0]
    assert pool.publish("a", [], tuple(_TEXT[:16]), block) == block
    pool.give_back([block])
    assert (pool.free, pool.evictable) == (2, 0)
    assert pool.match("a", _TEXT) == []


def test_resting_entries_do_not_pile_up() -> None:
    cache = PrefixCache()
    cache.publish("a", [], tuple(_TEXT[:16]), 0)
    for _ in range(1000):
        cache.touch([0])
        cache.rest(0)
    assert cache.evict(5, lambda block: True) == [0]
    assert len(cache) == 0
    assert not cache.holds("a")
