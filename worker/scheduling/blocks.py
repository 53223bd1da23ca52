"""The scheduler's ledger of KV blocks: who holds which, and which are free.

Pure bookkeeping. The engine's arena holds the memory and checks every change that is decided here;
the two must agree after each one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

BLOCK_TOKENS = 16


class OutOfBlocks(Exception):
    """There are fewer free blocks than wanted; nothing was taken."""

    def __init__(self, wanted: int, free: int) -> None:
        super().__init__(f"{wanted} blocks are wanted, {free} are free")
        self.wanted = wanted
        self.free = free


@dataclass(frozen=True, slots=True)
class LedgerSnapshot:
    """References to each block, and the free blocks in the order they would be given."""

    references: tuple[int, ...]
    free: tuple[int, ...]


class BlockLedger:
    """References to `blocks` blocks. Not thread-safe: the scheduler owns it.

    The block freed last is given first: its memory is the warmest.
    """

    def __init__(self, blocks: int) -> None:
        if blocks < 1:
            raise ValueError(f"a ledger of {blocks} blocks; accepted is at least 1")
        self._references = [0] * blocks
        self._free = list(range(blocks - 1, -1, -1))
        self._least_free = blocks

    @property
    def free(self) -> int:
        """Blocks that nobody holds."""
        return len(self._free)

    @property
    def touched(self) -> int:
        """Blocks that were ever given: always the first ones, as the warmest go first."""
        return len(self._references) - self._least_free

    def allocate(self, count: int) -> tuple[int, ...]:
        """Take `count` free blocks; raises OutOfBlocks and takes none when there are fewer."""
        if count > len(self._free):
            raise OutOfBlocks(count, len(self._free))
        taken = tuple(self._free.pop() for _ in range(count))
        self._least_free = min(self._least_free, len(self._free))
        for block in taken:
            self._references[block] = 1
        return taken

    def retain(self, blocks: Sequence[int]) -> None:
        """Add one reference to each; raises ValueError for a free block and changes nothing."""
        for block in blocks:
            self._check_used(block, 1)
        for block in blocks:
            self._references[block] += 1

    def release(self, blocks: Sequence[int]) -> tuple[int, ...]:
        """Drop one reference of each and return the blocks that are free now.

        Raises ValueError for a reference that does not exist, and changes nothing.
        """
        for block, count in Counter(blocks).items():
            self._check_used(block, count)
        freed = []
        for block in blocks:
            self._references[block] -= 1
            if not self._references[block]:
                freed.append(block)
        self._free += reversed(freed)
        return tuple(freed)

    def references(self, block: int) -> int:
        """References to one block."""
        return self._references[block]

    def counts(self) -> tuple[int, ...]:
        """References to each block."""
        return tuple(self._references)

    def snapshot(self) -> LedgerSnapshot:
        """The whole ledger as a value."""
        return LedgerSnapshot(tuple(self._references), tuple(reversed(self._free)))

    def _check_used(self, block: int, count: int) -> None:
        held = self._references[block] if 0 <= block < len(self._references) else 0
        if held < count:
            raise ValueError(f"block {block} has {held} references, {count} are named")


def blocks_for(tokens: int) -> int:
    """Blocks that `tokens` tokens of one sequence need: ceil(tokens / 16)."""
    return -(-tokens // BLOCK_TOKENS)


def violations(snapshot: LedgerSnapshot) -> list[str]:
    """Everything that is wrong with a ledger; empty when it is sound."""
    found = []
    times = Counter(snapshot.free)
    for block, references in enumerate(snapshot.references):
        if references < 0:
            found.append(f"block {block} has {references} references")
        if times[block] != (references == 0):
            found.append(
                f"block {block} has {references} references and is {times[block]} times free"
            )
    unknown = sorted(set(times) - set(range(len(snapshot.references))))
    return found + [f"block {block} is free and does not exist" for block in unknown]
