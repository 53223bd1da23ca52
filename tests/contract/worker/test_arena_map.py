"""The map of an arena in the worker's report: as old as it may be, and true at rest."""

from __future__ import annotations

from pathlib import Path

from tests.contract.worker.generating import (
    CONTEXT,
    MODEL,
    call_of,
    generating,
    hear,
    prompt_of,
    service_of,
)
from worker.models.synthetic_generator import build_tiny_generator
from worker.scheduling.block_map import MOST_CELLS, BlockUse


async def test_the_report_says_what_each_block_is_for(tmp_path: Path) -> None:
    build_tiny_generator(tmp_path, MODEL, context=CONTEXT)
    async with generating(tmp_path, arena_mib=1) as served:
        loop = service_of(served).engine
        assert set(loop.loads[0].block_map) <= {BlockUse.FREE}
        await hear(served, call_of(prompt_of(1, 100), max_tokens=8))
        # At rest the map is made anew, and what stays is the prefix cache's.
        await served.until(lambda: BlockUse.CACHED in loop.loads[0].block_map)
        (report,) = service_of(served).load().decode
        assert report.total_blocks <= MOST_CELLS
        assert len(report.block_map) == report.total_blocks
        assert report.block_map.count(BlockUse.CACHED) == report.evictable_blocks == 6
        assert report.block_map.count(BlockUse.FREE) == report.free_blocks
