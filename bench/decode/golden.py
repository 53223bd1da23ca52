"""What torch and transformers say of the default language model's weights, in fp32.

``golden.json`` is written by ``tests/golden/make_decoder_golden.py``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from bench.decode.golden_file import GOLDEN, PROMPTS
from bench.decode.peers.protocol import prompt
from worker.decode import DecodeEngine, SequenceStep
from worker.engine import Session
from worker.kv_arena import KV_BLOCK_TOKENS, KvArena
from worker.models.manifest import Generation

_CHUNK = 100


def largest_difference(graph: Path, generation: Generation, *, threads: int) -> float:
    """The largest difference of an fp32 graph's logits to the golden ones, over all prompts.

    Each prompt runs whole and in chunks, with keys and values in fp32.
    """
    outputs = json.loads(GOLDEN.read_text())["outputs"]
    session = Session(graph, intra_op_threads=threads, spinning=True)
    kv = generation.kv
    blocks = range(-(-max(PROMPTS) // KV_BLOCK_TOKENS))
    arena = KvArena(
        layers=kv.layers,
        kv_heads=kv.kv_heads,
        head_dim=kv.head_dim,
        blocks=len(blocks),
        half=False,
    )
    arena.acquire(blocks, 1)
    engine = DecodeEngine(
        session, arena, vocabulary=generation.vocabulary, context=generation.context
    )
    worst = 0.0
    for length in PROMPTS:
        expected = outputs[str(length)]
        tokens = prompt(length, length, generation.vocabulary)
        for chunk in (length, _CHUNK):
            row = _last_row(engine, tokens, chunk, blocks)
            differences = (
                abs(row[token] - value)
                for token, value in zip(expected["ids"], expected["logits"], strict=True)
            )
            worst = max(worst, *differences)
    return worst


def _last_row(
    engine: DecodeEngine, tokens: Sequence[int], chunk: int, blocks: Sequence[int]
) -> list[float]:
    row: list[float] = []
    for start in range(0, len(tokens), chunk):
        part = SequenceStep(tokens[start : start + chunk], start, blocks)
        row = engine.step([part]).logits[0].tolist()
    return row
