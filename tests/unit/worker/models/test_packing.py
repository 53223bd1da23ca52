"""Packed matrices stand for exactly the weights they were made of, and nothing is rounded."""

from __future__ import annotations

import numpy as np
import pytest

from worker.models.blocks import Matrix, eight_bits, four_bits, from_q4_1, from_q8_0
from worker.models.packing import GROUP, gated_order, pack, unpacked


def dense(outputs: int, inputs: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(outputs, inputs)).astype(np.float32)


@pytest.mark.parametrize("outputs", [32, 64, 33, 1])
def test_packed_blocks_keep_every_weight(outputs: int) -> None:
    for matrix, size in (
        (four_bits(dense(outputs, 96)), 640),
        (eight_bits(dense(outputs, 96)), 1088),
    ):
        packed = pack(matrix)
        groups = -(-outputs // GROUP)
        assert packed.dtype == np.uint8 and packed.shape == (groups, 3, size)
        weights = unpacked(packed)
        assert np.array_equal(weights[:outputs], matrix.floats())
        assert not weights[outputs:].any()


def test_blocks_of_a_file_are_kept_to_the_bit() -> None:
    rng = np.random.default_rng(1)
    four = rng.integers(0, 256, (40, 5, 20), dtype=np.uint8)
    eight = rng.integers(0, 256, (40, 5, 34), dtype=np.uint8)
    halves = rng.normal(size=(40, 5, 2)).astype("<f2")
    four[..., :4] = halves.view(np.uint8)
    eight[..., :2] = halves[..., :1].view(np.uint8)
    for matrix in (from_q4_1(four), from_q8_0(eight)):
        difference = unpacked(pack(matrix))[:40] - matrix.floats()
        assert np.abs(difference).max() <= 1e-6


def test_gates_and_ups_lie_side_by_side() -> None:
    order = gated_order(48)
    assert sorted(order) == list(range(96))
    for group in range(3):
        gates = np.arange(16 * group, 16 * group + 16)
        assert np.array_equal(order[32 * group : 32 * group + 16], gates)
        assert np.array_equal(order[32 * group + 16 : 32 * group + 32], gates + 48)


def test_what_would_be_rounded_is_refused() -> None:
    with pytest.raises(ValueError, match="dense"):
        pack(Matrix.dense(dense(32, 32)))
    exact = eight_bits(dense(32, 32))
    assert exact.scales is not None
    with pytest.raises(ValueError, match="half precision"):
        pack(Matrix("q8", exact.values, exact.scales * np.float32(1.0001)))
