"""Block maps: what each block is for, and how many are put together."""

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.worker.scheduling.arena import COST
from worker.scheduling.block_map import MOST_CELLS, BlockUse, cells_of, uses_of
from worker.scheduling.records import Arrival, SchedulingSettings
from worker.scheduling.scheduler import DecodeScheduler


def test_a_block_is_for_those_who_hold_it_besides_the_cache() -> None:
    references = (0, 1, 1, 2, 2, 3, 9)
    assert list(uses_of(references, {2, 4, 5})) == [
        BlockUse.FREE,
        BlockUse.USED,
        BlockUse.CACHED,
        BlockUse.SHARED,
        BlockUse.USED,
        BlockUse.SHARED,
        BlockUse.SHARED,
    ]


def test_a_cell_has_the_use_of_most_of_its_blocks_and_of_equals_the_more_engaged() -> None:
    assert cells_of(bytes([0, 0, 2, 1, 1, 3, 2]), 3) == bytes([0, 1, 2])
    assert cells_of(bytes([0, 2, 1, 0]), 2) == bytes([2, 1])


@given(st.binary(min_size=1, max_size=5000).map(lambda b: bytes(x & 3 for x in b)))
def test_the_size_of_a_cell_follows_from_the_number_of_cells(uses: bytes) -> None:
    cells = cells_of(uses)
    assert 0 < len(cells) <= MOST_CELLS
    size = -(-len(uses) // len(cells))
    assert -(-len(uses) // size) == len(cells)
    if size == 1:
        assert cells == uses
    for place, cell in enumerate(cells):
        assert cell in uses[place * size : (place + 1) * size]


def test_a_scheduler_shows_who_uses_the_blocks_and_what_stays_cached() -> None:
    scheduler = DecodeScheduler(SchedulingSettings(blocks=8, context=128), COST)
    assert scheduler.block_uses() == bytes(8)
    scheduler.submit(_arrival(1), 0)
    step = scheduler.next_step(0)
    assert step is not None
    held = scheduler.load()
    assert scheduler.block_uses().count(BlockUse.USED) == 8 - held.free_blocks
    scheduler.completed(step, {1: 7}, 10, 10)
    scheduler.cancel(1)
    held = scheduler.load()
    assert held.evictable_blocks == 2
    uses = scheduler.block_uses()
    assert uses.count(BlockUse.CACHED) == 2 and uses.count(BlockUse.FREE) == held.free_blocks


def _arrival(sequence_id: int) -> Arrival:
    return Arrival(
        sequence_id=sequence_id,
        tenant="t",
        prompt=tuple(range(2, 36)),
        max_new_tokens=4,
        arrived_ns=0,
        deadline_ns=None,
        first_token_target_ns=0,
        token_target_ns=0,
        group=sequence_id,
    )
