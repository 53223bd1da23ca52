"""Stock graphs over the arena: the same logits as the paged engine, and nothing left by errors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.unit.worker.decoders import (
    Change,
    count_positions,
    ignore_mask,
    open_session,
    put_first,
    replace_input,
    write_decoder,
    write_stock,
)
from worker.decode import DecodeEngine, SequenceStep
from worker.engine import RunToken
from worker.errors import InvalidInput, ModelLoadError, RunTerminated
from worker.kv_arena import DenseStep, KvArena
from worker.models.decoder import Architecture, Decoder
from worker.models.synthetic_decoder import tiny_decoder
from worker.stock_decode import PROBE_BLOCKS, StockDecodeEngine, bears_filling, runs_of

BLOCKS = 24


def make_arena(decoder: Decoder, *, half: bool = False) -> KvArena:
    config = decoder.config
    arena = KvArena(
        layers=config.layers,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        blocks=BLOCKS,
        half=half,
    )
    arena.acquire(range(BLOCKS), 1)
    return arena


def stock_engine(folder: Path, decoder: Decoder, *, half: bool = False) -> StockDecodeEngine:
    return StockDecodeEngine(
        open_session(write_stock(folder, decoder)),
        make_arena(decoder, half=half),
        vocabulary=decoder.config.vocabulary,
        context=decoder.config.context,
        threads=2,
    )


def tokens_of(count: int, seed: int) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(0, 97, count)]


def plans() -> list[list[SequenceStep]]:
    """Three sequences that start, grow by chunks of several lengths, and mix with single tokens."""
    blocks = [tuple(range(at, at + 8)) for at in (0, 8, 16)]
    texts = [tokens_of(100, seed) for seed in range(3)]
    past = [0, 0, 0]
    made = []
    for lengths in ((37, 5, 0), (1, 20, 33), (1, 1, 1), (20, 1, 1), (1, 1, 1)):
        parts = []
        for index, length in enumerate(lengths):
            if length:
                tokens = texts[index][past[index] : past[index] + length]
                parts.append(SequenceStep(tokens, past[index], blocks[index], index != 1))
                past[index] += length
        made.append(parts)
    return made


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
@pytest.mark.parametrize("half", [False, True])
def test_steps_are_those_of_the_paged_engine(
    tmp_path: Path, architecture: Architecture, half: bool
) -> None:
    decoder = tiny_decoder(architecture)
    stock = stock_engine(tmp_path, decoder, half=half)
    paged = DecodeEngine(
        open_session(write_decoder(tmp_path, decoder)),
        make_arena(decoder, half=half),
        vocabulary=decoder.config.vocabulary,
        context=decoder.config.context,
    )
    for plan in plans():
        found, expected = stock.step(plan), paged.step(plan)
        assert found.logits.shape == expected.logits.shape
        assert np.abs(found.logits - expected.logits).max() < (0.2 if half else 1e-3)
        assert found.moved_ns > 0
    assert stock.arena.filled() == paged.arena.filled()


def test_a_step_that_was_ended_leaves_its_positions_empty_and_runs_again(tmp_path: Path) -> None:
    engine = stock_engine(tmp_path, tiny_decoder())
    plan = [SequenceStep(tokens_of(20, 1), 0, (0, 1))]
    token = RunToken()
    token.terminate()
    with pytest.raises(RunTerminated):
        engine.step(plan, token=token)
    assert sum(engine.arena.filled()) == 0
    assert engine.step(plan).logits.shape == (1, 97)
    assert sum(engine.arena.filled()) == 20


def test_plans_are_checked_before_anything_runs(tmp_path: Path) -> None:
    engine = stock_engine(tmp_path, tiny_decoder())
    with pytest.raises(InvalidInput, match="at least one"):
        engine.step([])
    with pytest.raises(InvalidInput, match="outside the vocabulary of 97"):
        engine.step([SequenceStep([97], 0, (0,))])
    with pytest.raises(InvalidInput, match="hold no token"):
        engine.step([SequenceStep([5], 3, (0,))])


def test_a_graph_without_pasts_is_refused(tmp_path: Path) -> None:
    decoder = tiny_decoder()
    session = open_session(write_decoder(tmp_path, decoder))
    with pytest.raises(ModelLoadError, match="past_key_values"):
        StockDecodeEngine(session, make_arena(decoder), vocabulary=97, context=64)


@pytest.mark.parametrize("half", [False, True])
def test_what_is_scattered_is_gathered_again_right_aligned(half: bool) -> None:
    arena = KvArena(layers=2, kv_heads=3, head_dim=8, blocks=6, half=half)
    arena.acquire(range(6), 1)
    generator = np.random.default_rng(4)
    # Values that half precision holds exactly.
    written = [
        [generator.integers(-64, 64, (2, 3, 20, 8)).astype(np.float32) for _ in range(2)]
        for _ in "kv"
    ]
    table = np.array([[0, 1, 2], [3, 4, 5]], np.int32)
    offsets = np.array([0, 20, 40], np.int32)
    none = np.zeros(2, np.int32)
    with DenseStep(arena, row_offsets=offsets, past_lengths=none, block_table=table) as step:
        step.scatter(0, written[0], written[1], threads=2)
        step.commit()
    past = np.array([20, 13], np.int32)
    one = np.array([0, 1, 2], np.int32)
    read = [[np.full((2, 3, 24, 8), 7, np.float32) for _ in range(2)] for _ in "kv"]
    with DenseStep(arena, row_offsets=one, past_lengths=past, block_table=table) as step:
        step.gather(24, read[0], read[1], threads=2)
    for got, expected in zip(read[0] + read[1], written[0] + written[1], strict=True):
        assert np.array_equal(got[0, :, 4:], expected[0])
        assert np.array_equal(got[1, :, 11:], expected[1, :, :13])
        assert not got[0, :, :4].any() and not got[1, :, :11].any()
    # The step was not committed, so the block it wrote ends where its past did.
    assert arena.filled() == (16, 4, 0, 13, 4, 0)


def test_dense_tensors_of_another_shape_are_refused() -> None:
    arena = KvArena(layers=2, kv_heads=3, head_dim=8, blocks=2, half=False)
    arena.acquire(range(2), 1)
    table, none = np.array([[0, 1]], np.int32), np.zeros(1, np.int32)
    one = np.array([0, 1], np.int32)
    good = [np.zeros((1, 3, 5, 8), np.float32) for _ in range(2)]
    with DenseStep(arena, row_offsets=one, past_lengths=none, block_table=table) as step:
        with pytest.raises(InvalidInput, match=r"\[sequences, kv_heads, 6, head_dim\]"):
            step.gather(6, good, good, threads=1)
        with pytest.raises(InvalidInput, match="of 1 layers; the arena has 2"):
            step.gather(5, good[:1], good[:1], threads=1)
        step.gather(5, good, good, threads=1)
    with pytest.raises(InvalidInput, match="closed"):
        step.commit()


def parts_of(*shapes: tuple[int, int]) -> list[SequenceStep]:
    """Parts of (tokens, past) each."""
    return [SequenceStep([5] * tokens, past, ()) for tokens, past in shapes]


def test_sequences_with_as_many_new_tokens_run_together() -> None:
    plan = parts_of((1, 40), (20, 0), (1, 90), (20, 16), (1, 0))
    together = runs_of(plan, filled=True, most_tokens=10_000)
    assert together == [(2, 0, 4), (3, 1)]
    apart = runs_of(plan, filled=False, most_tokens=10_000)
    assert sorted(apart) == [(0,), (1,), (2,), (3,), (4,)]
    alike = runs_of(parts_of((1, 7), (1, 9), (1, 7)), filled=False, most_tokens=10_000)
    assert alike == [(1,), (0, 2)]


def test_a_run_is_no_larger_than_it_may_be_but_for_a_single_sequence() -> None:
    plan = parts_of((1, 99), (1, 99), (1, 9), (1, 9), (1, 9), (1, 400))
    # The longest by itself, then two of 100 with a short one filled up to 100.
    assert runs_of(plan, filled=True, most_tokens=300) == [(5,), (0, 1, 2), (3, 4)]


def test_a_graph_that_counts_its_own_positions_runs_equal_pasts_together(tmp_path: Path) -> None:
    decoder = tiny_decoder("gpt2")
    session = open_session(write_stock(tmp_path, decoder, count_positions))
    stock = StockDecodeEngine(
        session,
        make_arena(decoder),
        vocabulary=decoder.config.vocabulary,
        context=decoder.config.context,
    )
    paged = DecodeEngine(
        open_session(write_decoder(tmp_path, decoder)),
        make_arena(decoder),
        vocabulary=decoder.config.vocabulary,
        context=decoder.config.context,
    )
    for plan in plans():
        found, expected = stock.step(plan), paged.step(plan)
        assert np.abs(found.logits - expected.logits).max() < 1e-3


def bears(folder: Path, change: Change | None, context: int = 64) -> bool:
    """Whether the changed stock graph bears filling."""
    decoder = tiny_decoder()
    config = decoder.config
    session = open_session(write_stock(folder, decoder, change))

    def make_engine(filled: bool) -> StockDecodeEngine:
        arena = KvArena(
            layers=config.layers,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            blocks=PROBE_BLOCKS,
            half=False,
        )
        return StockDecodeEngine(
            session, arena, vocabulary=config.vocabulary, context=context, filled=filled
        )

    return bears_filling(make_engine, vocabulary=config.vocabulary, context=context)


def test_whether_pasts_may_be_filled_up_is_tried(tmp_path: Path) -> None:
    assert bears(tmp_path, None)
    assert not bears(tmp_path, ignore_mask)
    # Without a past of two tokens there is nothing to tell them apart by.
    assert not bears(tmp_path, None, context=2)


def test_keys_of_another_type_are_refused(tmp_path: Path) -> None:
    def halve(model: onnx.ModelProto) -> None:
        past = next(v for v in model.graph.input if v.name == "past_key_values.0.key")
        past.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
        replace_input(model, past.name, "wide_keys")
        to = onnx.TensorProto.FLOAT
        put_first(model, onnx.helper.make_node("Cast", [past.name], ["wide_keys"], to=to))

    decoder = tiny_decoder()
    session = open_session(write_stock(tmp_path, decoder, halve))
    with pytest.raises(ModelLoadError, match=r"as float32 \[batch, kv_heads"):
        StockDecodeEngine(session, make_arena(decoder), vocabulary=97, context=64)
