"""What every block of an arena is for, small enough to be reported."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum

# Cells of a map; larger arenas put several neighbouring blocks into one.
MOST_CELLS = 2048


class BlockUse(IntEnum):
    """What a block is for; the values are those on the wire.

    Cached blocks are held by the prefix cache alone, used ones by one sequence, shared ones by
    several.
    """

    FREE = 0
    CACHED = 1
    USED = 2
    SHARED = 3


# By the number of holders, the prefix cache among them or not; more are as the last.
_CACHED = bytes([BlockUse.FREE, BlockUse.CACHED, BlockUse.USED, BlockUse.SHARED])
_PLAIN = bytes([BlockUse.FREE, BlockUse.USED, BlockUse.SHARED])


def uses_of(references: Sequence[int], cached: Iterable[int]) -> bytes:
    """The use of each block: one byte for each of `references`, the counts of its holders.

    Of the references to blocks in `cached` one is the prefix cache's own.
    """
    uses = bytearray([_PLAIN[count] if count < 2 else _PLAIN[2] for count in references])
    for block in cached:
        uses[block] = _CACHED[min(references[block], 3)]
    return bytes(uses)


def cells_of(uses: bytes, most: int = MOST_CELLS) -> bytes:
    """At most `most` cells, each with the use that most of its blocks have.

    Of uses that are equally frequent the one with more holders counts. A cell stands for
    `ceil(blocks / cells)` neighbouring blocks, the last one perhaps for fewer.
    """
    if len(uses) <= most:
        return uses
    size = -(-len(uses) // most)
    cells = (uses[begin : begin + size] for begin in range(0, len(uses), size))
    return bytes([_usual(cell) for cell in cells])


def _usual(cell: bytes) -> int:
    return max((cell.count(use), use) for use in range(len(BlockUse)))[1]
