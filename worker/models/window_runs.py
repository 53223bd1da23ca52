"""Runs whole windows of text through a language model's graph, as evaluation needs them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from worker.engine import Session
from worker.kv_arena import KV_BLOCK_TOKENS, KvArena
from worker.models.manifest import Generation, Variant

Floats = NDArray[np.float32]
WindowRun = Callable[[Sequence[int], int], Floats]
"""Logits float32 [rows, vocabulary] after a window's tokens from ``first`` on, but its last."""


def window_run(session: Session, variant: Variant, generation: Generation, most: int) -> WindowRun:
    """Return what runs windows of at most ``most`` tokens; a run may raise WorkerError."""
    if variant.layout == "dense":
        return _dense(session, generation)
    return _paged(session, generation, most)


def _paged(session: Session, generation: Generation, most: int) -> WindowRun:
    kv, count = generation.kv, -(-most // KV_BLOCK_TOKENS)
    arena = KvArena(layers=kv.layers, kv_heads=kv.kv_heads, head_dim=kv.head_dim, blocks=count)
    blocks = np.arange(count, dtype=np.int32)
    arena.acquire(blocks.tolist(), 1)

    def run(window: Sequence[int], first: int) -> Floats:
        size = len(window)
        outputs = session.run_step(
            arena,
            {
                "input_ids": np.asarray(window, np.int64),
                "positions": np.arange(size),
                "last_rows": np.arange(first, size - 1),
            },
            row_offsets=np.array([0, size], np.int32),
            past_lengths=np.zeros(1, np.int32),
            block_table=blocks[None, :],
        )
        return np.asarray(outputs.tensors["logits"], np.float32)

    return run


def _dense(session: Session, generation: Generation) -> WindowRun:
    kv = generation.kv
    nothing = np.zeros((1, kv.kv_heads, 0, kv.head_dim), np.float32)
    past = {
        f"past_key_values.{index}.{part}": nothing
        for index in range(kv.layers)
        for part in ("key", "value")
    }

    def run(window: Sequence[int], first: int) -> Floats:
        size = len(window)
        texts = {
            "input_ids": np.asarray([window], np.int64),
            "attention_mask": np.ones((1, size), np.int64),
            "position_ids": np.arange(size)[None],
        }
        logits: Floats = session.run({**texts, **past})["logits"]
        return logits[0, first:-1]

    return run
