"""The ragged operators: against numpy, against each other, alone and in company."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.unit.worker import graphs
from worker import _engine
from worker.engine import Session, runtime_info
from worker.errors import InvalidInput

Floats = NDArray[np.float32]
LEVELS = ["portable"] + (["avx2"] if runtime_info().simd == "avx2" else [])


def offsets_of(lengths: list[int]) -> NDArray[np.int32]:
    return np.cumsum([0, *lengths]).astype(np.int32)


def reference(qkv: Floats, lengths: list[int], heads: int, bias: Floats | None) -> Floats:
    """Attention of each sequence by itself, in float64 numpy."""
    results = []
    start = 0
    for length in lengths:
        rows = qkv[start : start + length].astype(np.float64).reshape(length, 3, heads, -1)
        q, k, v = rows.transpose(1, 2, 0, 3)
        scores = q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[-1])
        if bias is not None:
            far = bias.shape[1] // 2
            places = np.arange(length)
            distance = np.clip(places[None, :] - places[:, None], -far, far)
            scores = scores + bias[:, distance + far]
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        mixed = weights / weights.sum(axis=-1, keepdims=True) @ v
        results.append(mixed.transpose(1, 0, 2).reshape(length, -1))
        start += length
    return np.concatenate(results).astype(np.float32)


@st.composite
def problems(draw: st.DrawFn) -> tuple[list[int], int, int, Floats, Floats | None]:
    lengths = draw(st.lists(st.integers(1, 90) | st.integers(230, 280), min_size=1, max_size=5))
    heads = draw(st.integers(1, 4))
    dim = draw(st.sampled_from([8, 16, 24, 32, 64, 3, 20]))
    reach = draw(st.sampled_from([0, 1, 30, 300]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    qkv = rng.normal(size=(sum(lengths), 3 * heads * dim)).astype(np.float32)
    bias = rng.normal(size=(heads, 2 * reach - 1)).astype(np.float32) if reach else None
    return lengths, heads, dim, qkv, bias


@settings(max_examples=60, deadline=None)
@given(problem=problems())
def test_kernels_match_numpy_and_a_sequence_alone(
    problem: tuple[list[int], int, int, Floats, Floats | None],
) -> None:
    lengths, heads, _, qkv, bias = problem
    offsets = offsets_of(lengths)
    expected = reference(qkv, lengths, heads, bias)
    for simd in LEVELS:
        mixed = _engine.ragged_attention(qkv, offsets, num_heads=heads, bias=bias, simd=simd)
        np.testing.assert_allclose(mixed, expected, atol=5e-6)
        for start, end in pairwise(offsets):
            alone = _engine.ragged_attention(
                qkv[start:end], offsets_of([end - start]), num_heads=heads, bias=bias, simd=simd
            )
            np.testing.assert_array_equal(mixed[start:end], alone)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("reach", [0, 40])
def test_the_operator_is_the_kernel(tmp_path: Path, threads: int, reach: int) -> None:
    graph = graphs.attention(tmp_path / "m.onnx", 2, 16, bias_reach=reach)
    session = Session(graph, intra_op_threads=threads)
    rng = np.random.default_rng(3)
    lengths = [5, 300, 1, 64]
    feeds: dict[str, NDArray[Any]] = {
        "qkv": rng.normal(size=(sum(lengths), 96)).astype(np.float32),
        "row_offsets": offsets_of(lengths),
        "bias": rng.normal(size=(2, 2 * max(reach, 1) - 1)).astype(np.float32),
    }
    kernel = _engine.ragged_attention(
        feeds["qkv"], feeds["row_offsets"], num_heads=2,
        bias=feeds["bias"] if reach else None, simd=LEVELS[-1],
    )  # fmt: skip
    np.testing.assert_array_equal(session.run(feeds)["y"], kernel)


def test_the_scale_attribute_replaces_the_default(tmp_path: Path) -> None:
    session = Session(graphs.attention(tmp_path / "m.onnx", 1, 8, scale=0.5))
    qkv = np.random.default_rng(0).normal(size=(6, 24)).astype(np.float32)
    qkv_of_default = qkv.copy()
    qkv_of_default[:, :8] *= 0.5 * np.sqrt(8)
    np.testing.assert_allclose(
        session.run({"qkv": qkv, "row_offsets": offsets_of([6])})["y"],
        reference(qkv_of_default, [6], 1, None),
        atol=1e-6,
    )


@pytest.mark.parametrize(
    ("offsets", "words"),
    [
        ([1, 4], r"row_offsets\[0\] is 1"),
        ([0, 2, 2, 4], r"row_offsets\[2\] is 2 after 2"),
        ([0, 3, 1, 4], r"row_offsets\[2\] is 1 after 3"),
        ([0, 3], "ends at 3; accepted is the number of rows, 4"),
        ([0, 2**31 - 1], "ends at"),
        ([0, -5, 4], "is -5 after 0"),
        ([0], "1 values"),
        ([], "0 values"),
    ],
)
def test_offsets_are_refused_before_anything_is_read(
    tmp_path: Path, offsets: list[int], words: str
) -> None:
    given = np.array(offsets, np.int32)
    qkv = np.zeros((4, 24), np.float32)
    attention = Session(graphs.attention(tmp_path / "a.onnx", 1, 8))
    pooling = Session(graphs.pooling(tmp_path / "p.onnx", 24))
    with pytest.raises(InvalidInput, match=words):
        attention.run({"qkv": qkv, "row_offsets": given})
    with pytest.raises(InvalidInput, match=words):
        pooling.run({"input_ids": np.zeros(4, np.int64), "x": qkv, "row_offsets": given})
    with pytest.raises(InvalidInput, match=words):
        _engine.ragged_attention(qkv, given, num_heads=1, simd=LEVELS[-1])


@given(lengths=st.lists(st.integers(1, 40), min_size=1, max_size=6))
@settings(max_examples=25, deadline=None)
def test_positions_restart_and_means_stay_apart(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int]
) -> None:
    session = Session(graphs.pooling(tmp_path_factory.mktemp("ragged") / "m.onnx", 5))
    x = np.random.default_rng(len(lengths)).normal(size=(sum(lengths), 5)).astype(np.float32)
    offsets = offsets_of(lengths)
    out = session.run({"input_ids": np.zeros(len(x), np.int64), "x": x, "row_offsets": offsets})
    np.testing.assert_array_equal(
        out["positions"], np.concatenate([np.arange(length) for length in lengths])
    )
    means = np.stack([x[a:b].mean(axis=0) for a, b in pairwise(offsets)])
    np.testing.assert_allclose(out["mean"], means, atol=1e-6)


def test_a_graph_whose_head_count_does_not_fit_is_refused(tmp_path: Path) -> None:
    graph = graphs.attention(tmp_path / "m.onnx", 5, 8)
    session = Session(graph)
    with pytest.raises(InvalidInput, match=r"'qkv' has shape \[4, 96\]"):
        session.run({"qkv": np.zeros((4, 96), np.float32), "row_offsets": offsets_of([4])})
    with pytest.raises(InvalidInput, match="accepted"):
        _engine.ragged_attention(
            np.zeros((4, 25), np.float32), offsets_of([4]), num_heads=1, simd="portable"
        )
    with pytest.raises(InvalidInput, match="simd is 'neon'"):
        _engine.ragged_attention(
            np.zeros((4, 24), np.float32), offsets_of([4]), num_heads=1, simd="neon"
        )
