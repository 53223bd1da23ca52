"""The decode engine on tiny decoders, against their definition in numpy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.unit.worker.decoders import Lane, Text, open_session, write_decoder
from worker.decode import DecodeEngine, SequenceStep
from worker.engine import RunToken
from worker.errors import InvalidInput, RunTerminated
from worker.kv_arena import KvArena
from worker.models.decoder import Architecture
from worker.models.paged import DecoderPrecision
from worker.models.synthetic_decoder import quantized_decoder, reference_decode, tiny_decoder

ARCHITECTURES: tuple[Architecture, ...] = get_args(Architecture)


def random_tokens(count: int, seed: int = 3) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(0, 97, count)]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("half", [False, True])
def test_logits_are_those_of_the_definition(
    tmp_path: Path, architecture: Architecture, half: bool
) -> None:
    decoder = tiny_decoder(architecture)
    lane = Lane(decoder, open_session(write_decoder(tmp_path, decoder)), half=half)
    tokens = random_tokens(700)
    expected = reference_decode(decoder, tokens)
    chunks = [37, 1, 1, 300, 17, 1, 343]
    got = lane.alone(tokens, chunks)
    ends = np.cumsum(chunks) - 1
    distance = np.abs(np.array(got) - expected[ends]).max()
    assert distance < (0.2 if half else 1e-4)
    assert np.abs(expected).max() > 50


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_cached_position_changes_the_logits(
    tmp_path: Path, architecture: Architecture
) -> None:
    decoder = tiny_decoder(architecture)
    lane = Lane(decoder, open_session(write_decoder(tmp_path, decoder)))
    tokens = random_tokens(50)
    before = lane.alone(tokens, [49, 1])[1]
    for position in range(49):
        changed = list(tokens)
        changed[position] = (changed[position] + 1) % 97
        after = lane.alone(changed, [49, 1])[1]
        assert np.abs(after - before).max() > 1e-3, position


@pytest.mark.parametrize("precision", get_args(DecoderPrecision))
@pytest.mark.parametrize("half", [False, True])
def test_batched_is_alone_bit_for_bit_with_blocks_reused(
    tmp_path: Path, precision: DecoderPrecision, half: bool
) -> None:
    decoder = quantized_decoder()
    session = open_session(write_decoder(tmp_path, decoder, precision), threads=2)
    texts = [random_tokens(length, seed) for seed, length in enumerate((600, 33, 20, 90, 5, 47, 3))]
    lane = Lane(decoder, session, half=half, blocks=64)
    alone = [lane.alone(t, [len(t) - 2, 1, 1]) for t in texts]
    # Chunks are as alone, since matrix kernels may depend on a chunk's own rows; company differs.
    running = [Text(list(t)) for t in texts]
    first = [(text, len(text.tokens) - 2) for text in running]
    batched: list[list[np.ndarray]] = [[] for _ in texts]
    schedule = [[0], [1, 2], [0, 3, 4], [1, 0, 5, 6, 2], [1, 2, 3, 4, 5, 6], [6, 5, 4, 3]]
    for members in schedule:
        parts = [first[i] if not batched[i] else (running[i], 1) for i in members]
        for index, row in zip(members, lane.step(*parts), strict=True):
            batched[index].append(row)
    for index, (together, single) in enumerate(zip(batched, alone, strict=True)):
        assert len(together) == 3
        for a, b in zip(together, single, strict=True):
            np.testing.assert_array_equal(a, b, err_msg=str(index))


@pytest.mark.parametrize("precision", ["int8", "q4"])
def test_quantised_products_stay_near_the_weights_they_stand_for(
    tmp_path: Path, precision: DecoderPrecision
) -> None:
    decoder = quantized_decoder()
    lane = Lane(decoder, open_session(write_decoder(tmp_path, decoder, precision)))
    tokens = random_tokens(120)
    expected = reference_decode(decoder, tokens)
    (got,) = lane.alone(tokens, [120])
    # What is left is the 8-bit rounding of activations (and of weights for int8).
    similarity = np.corrcoef(got, expected[-1])[0, 1]
    assert similarity > 0.995
    assert lane.alone(tokens, [64, 56])[1].argmax() == expected[-1].argmax()


def test_a_step_without_wanted_logits_still_fills_the_arena(tmp_path: Path) -> None:
    decoder = quantized_decoder()
    for precision in get_args(DecoderPrecision):
        lane = Lane(decoder, open_session(write_decoder(tmp_path, decoder, precision)))
        tokens = random_tokens(60)
        text = Text(tokens)
        result = lane.engine.step([lane.plan(text, 40, wants_logits=False)])
        assert result.logits.shape == (0, 97)
        assert result.attention_ns > 0
        text.past = 40
        np.testing.assert_array_equal(lane.step((text, 20))[0], lane.alone(tokens, [40, 20])[1])


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_greedy_text_is_that_of_the_definition(tmp_path: Path, architecture: Architecture) -> None:
    decoder = tiny_decoder(architecture, tied=False)
    lane = Lane(decoder, open_session(write_decoder(tmp_path, decoder)))
    prompt = random_tokens(20)
    tokens = list(prompt)
    for _ in range(24):
        tokens.append(int(reference_decode(decoder, tokens)[-1].argmax()))
    assert lane.greedy(prompt, 24) == tokens[20:]
    assert len(set(tokens[20:])) > 3
    assert lane.arena.stats().used == 0


def test_a_prefix_is_shared_and_never_written(tmp_path: Path) -> None:
    decoder = tiny_decoder()
    lane = Lane(decoder, open_session(write_decoder(tmp_path, decoder)))
    shared, rest = random_tokens(32), [random_tokens(9, seed) for seed in (5, 6)]
    alone = [lane.alone(shared + tail, [32, 9])[1] for tail in rest]
    first = Text(shared + rest[0])
    lane.step((first, 32))
    second = Text(shared + rest[1], past=32, blocks=list(first.blocks))
    lane.ledger.retain(first.blocks)
    lane.arena.retain(first.blocks)
    together = lane.step((first, 9), (second, 9))
    np.testing.assert_array_equal(together, alone)
    rewind = SequenceStep(shared[31:], 31, tuple(first.blocks))
    with pytest.raises(InvalidInput, match="2 references"):
        lane.engine.step([rewind])
    lane.free(first)
    lane.free(second)
    assert lane.arena.stats().used == 0


def test_a_terminated_step_leaves_its_positions_empty_and_runs_again(tmp_path: Path) -> None:
    decoder = tiny_decoder()
    lane = Lane(decoder, open_session(write_decoder(tmp_path, decoder)))
    text = Text(random_tokens(40))
    lane.step((text, 20))
    plan = [lane.plan(text, 20)]
    token = RunToken()
    token.terminate()
    with pytest.raises(RunTerminated):
        lane.engine.step(plan, token=token)
    assert lane.arena.stats().filled == 20
    np.testing.assert_array_equal(
        lane.engine.step(plan).logits[0], lane.alone(text.tokens, [20, 20])[1]
    )


def test_steps_that_do_not_fit_are_refused_and_change_nothing(tmp_path: Path) -> None:
    decoder = tiny_decoder(context=64)
    lane = Lane(decoder, open_session(write_decoder(tmp_path, decoder)))
    text = Text(random_tokens(64))
    lane.step((text, 30))
    blocks = tuple(text.blocks)
    good = SequenceStep([1], 30, blocks)
    refusals = {
        "at least one": [],
        "has no token": [replace(good, tokens=[])],
        "outside the vocabulary of 97": [replace(good, tokens=[97])],
        "the context is 64": [replace(good, past=64)],
        "hold no token": [replace(good, past=31)],
        "block 7 is free": [replace(good, blocks=(blocks[0], 7))],
        "does not exist": [replace(good, blocks=(blocks[0], 1000))],
        "which sequence 0 writes too": [good, good],
    }
    for reason, plan in refusals.items():
        with pytest.raises(InvalidInput, match=reason):
            lane.engine.step(plan)
    with pytest.raises(InvalidInput, match="outside the vocabulary"):
        lane.engine.step([replace(good, tokens=[-1])])
    assert lane.arena.stats().filled == 30
    expected = reference_decode(decoder, text.tokens[:31])[30]
    assert np.abs(lane.step((text, 1))[0] - expected).max() < 1e-4


def test_an_arena_of_another_shape_is_refused(tmp_path: Path) -> None:
    decoder = tiny_decoder()
    session = open_session(write_decoder(tmp_path, decoder))
    arena = KvArena(layers=1, kv_heads=2, head_dim=16, blocks=1)
    arena.acquire([0], 1)
    engine = DecodeEngine(session, arena, vocabulary=97, context=64)
    with pytest.raises(InvalidInput, match="the arena holds 1 layers of 2 heads of 16"):
        engine.step([SequenceStep([1], 0, (0,))])
    assert arena.filled() == (0,)


def test_a_paged_graph_runs_only_within_a_step(tmp_path: Path) -> None:
    decoder = tiny_decoder()
    session = open_session(write_decoder(tmp_path, decoder))
    feeds: dict[str, NDArray[Any]] = {
        "input_ids": np.array([1, 2], np.int64),
        "row_offsets": np.array([0, 2], np.int32),
        "past_lengths": np.array([0], np.int32),
        "block_table": np.array([[0]], np.int32),
        "step": np.array([1], np.int64),
        "last_rows": np.array([1], np.int64),
    }
    with pytest.raises(InvalidInput, match="no open step"):
        session.run(feeds)
