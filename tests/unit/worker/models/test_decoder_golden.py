"""Decoders of tiny checkpoints against transformers: reader, both graphs and both engines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.golden.decoder_checkpoints import (
    FAMILIES,
    LENGTHS,
    config_document,
    places,
    prompt,
    tiny_checkpoint,
)
from tests.unit.worker.decoders import open_session, write_decoder, write_stock
from worker.decode import DecodeEngine, SequenceStep
from worker.kv_arena import KV_BLOCK_TOKENS, KvArena
from worker.models.decoder import Decoder
from worker.models.decoder_sources import checkpoint_config, read_decoder
from worker.stock_decode import StockDecodeEngine

GOLDEN = Path(__file__).parents[3] / "golden" / "decoders.json"
TOLERANCE = 1e-3


def golden_decoder(family: str) -> Decoder:
    return read_decoder(checkpoint_config(config_document(family)), tiny_checkpoint(family))


def expected_rows(family: str, length: int) -> Any:
    return np.array(json.loads(GOLDEN.read_text())["outputs"][family][str(length)])


def fp32_arena(decoder: Decoder, tokens: int) -> tuple[KvArena, list[int]]:
    config = decoder.config
    blocks = list(range(-(-tokens // KV_BLOCK_TOKENS)))
    arena = KvArena(
        layers=config.layers,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        blocks=len(blocks),
        half=False,
    )
    arena.acquire(blocks, 1)
    return arena, blocks


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("form", ["paged", "stock"])
def test_logits_are_those_of_transformers_however_a_prompt_is_cut(
    tmp_path: Path, family: str, form: str
) -> None:
    decoder = golden_decoder(family)
    arena, blocks = fp32_arena(decoder, max(LENGTHS))
    engine: DecodeEngine | StockDecodeEngine
    if form == "paged":
        session = open_session(write_decoder(tmp_path, decoder))
        engine = DecodeEngine(
            session,
            arena,
            vocabulary=decoder.config.vocabulary,
            context=decoder.config.context,
        )
    else:
        session = open_session(write_stock(tmp_path, decoder))
        engine = StockDecodeEngine(
            session,
            arena,
            vocabulary=decoder.config.vocabulary,
            context=decoder.config.context,
        )
    for length in LENGTHS:
        tokens, past, rows = prompt(length), 0, []
        # A chunk ends behind each golden place, so they are of one, several and many tokens.
        for end in (place + 1 for place in places(length)):
            part = SequenceStep(tokens[past:end], past, blocks)
            rows.append(engine.step([part]).logits[0])
            past = end
        expected = expected_rows(family, length)
        assert np.abs(np.array(rows) - expected).max() < TOLERANCE
        assert np.abs(expected).max() > 1
