"""Memory of keys and values in the compiled engine, and steps on it whose tensors are dense."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from worker import _engine

KV_BLOCK_TOKENS = 16


@dataclass(frozen=True, slots=True)
class KvStats:
    """An arena's occupancy: counts of blocks, and token slots that hold a token.

    `zeroed` counts blocks wiped since the start because another owner got them; `bytes` is the
    size of the whole arena.
    """

    blocks: int
    used: int
    shared: int
    filled: int
    zeroed: int
    bytes: int
    huge_pages: bool

    @property
    def fragmentation(self) -> float:
        """Share of the used blocks' token slots that hold no token."""
        return 1 - self.filled / (self.used * KV_BLOCK_TOKENS) if self.used else 0.0


class KvArena:
    """Memory of keys and values in blocks of 16 tokens with reference counts.

    The caller decides which blocks are taken and keeps a ledger of his own; the arena checks each
    change whole before making any of it. Thread-safe; refuses changes while a step runs.
    `handle` is the extension's own, for `Session.run_step`.
    Raises `InvalidInput` for sizes without sense, `EngineFault` when there is no memory.
    """

    def __init__(
        self, *, layers: int, kv_heads: int, head_dim: int, blocks: int, half: bool = True
    ) -> None:
        self._layers = layers
        self.handle = _engine.KvArena(
            layers=layers, kv_heads=kv_heads, head_dim=head_dim, blocks=blocks, half=half
        )

    def acquire(self, blocks: Sequence[int], owner: int) -> None:
        """Take free blocks for `owner`; those that were another owner's last are zeroed."""
        self.handle.acquire(list(blocks), owner)

    def retain(self, blocks: Sequence[int]) -> None:
        """Add one reference to each of these used blocks."""
        self.handle.retain(list(blocks))

    def release(self, blocks: Sequence[int]) -> None:
        """Drop one reference of each; a block without references is free."""
        self.handle.release(list(blocks))

    def copy(self, source: int, target: int) -> None:
        """Copy a block's keys, values and fill into one of the same owner with one reference."""
        self.handle.copy(source, target)

    def references(self) -> tuple[int, ...]:
        """References to each block."""
        return tuple(self.handle.references().tolist())

    def filled(self) -> tuple[int, ...]:
        """Tokens that each block holds."""
        return tuple(self.handle.filled().tolist())

    def stats(self) -> KvStats:
        """Occupancy now."""
        return KvStats(*self.handle.stats())

    def touched_bytes(self, blocks: int, page: int) -> int:
        """Bytes of the pages that the first `blocks` blocks lie in: a span of each layer's part."""
        stats = self.stats()
        layer = stats.bytes // self._layers
        span = layer // stats.blocks * blocks
        pages, end = 0, 0
        for number in range(self._layers if span else 0):
            first = max(end, number * layer // page)
            end = (number * layer + span - 1) // page + 1
            pages += max(0, end - first)
        return pages * page


class DenseStep:
    """An open step on an arena whose keys and values are copied as dense tensors.

    A context manager: the step is checked and opened when it is made, as `Session.run_step` does,
    and ends with the block; its tokens count only when it was committed. Tensors are float32
    [sequences, kv_heads, tokens, head_dim], one of each for every layer.
    """

    def __init__(
        self,
        arena: KvArena,
        *,
        row_offsets: NDArray[np.int32],
        past_lengths: NDArray[np.int32],
        block_table: NDArray[np.int32],
    ) -> None:
        self._step = _engine.DenseStep(
            arena.handle,
            row_offsets=row_offsets,
            past_lengths=past_lengths,
            block_table=block_table,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._step.close()

    def gather(
        self,
        width: int,
        keys: Sequence[NDArray[np.float32]],
        values: Sequence[NDArray[np.float32]],
        *,
        threads: int,
    ) -> None:
        """Fill tensors of `width` tokens with the cached ones, each sequence's at the end."""
        self._step.gather(width, list(keys), list(values), threads=threads)

    def scatter(
        self,
        width: int,
        keys: Sequence[NDArray[np.float32]],
        values: Sequence[NDArray[np.float32]],
        *,
        threads: int,
    ) -> None:
        """Write the step's tokens, which lie behind the first `width` of the tensors."""
        self._step.scatter(width, list(keys), list(values), threads=threads)

    def commit(self) -> None:
        """Let the written tokens count."""
        self._step.commit()
