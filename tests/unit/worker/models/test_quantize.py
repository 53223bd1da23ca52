"""8-bit blocks: the error bound, the extremes and the shapes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.models.quantize import BLOCK, dequantize, quantize


@settings(max_examples=50, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    blocks=st.integers(1, 4),
    outputs=st.integers(1, 7),
    exponent=st.integers(-6, 4),
)
def test_the_error_is_half_a_step_at_most(
    seed: int, blocks: int, outputs: int, exponent: int
) -> None:
    random = np.random.default_rng(seed)
    weight = (random.normal(0, 10.0**exponent, (blocks * BLOCK, outputs))).astype(np.float32)
    made = quantize(weight)
    assert made.values.shape == (outputs, blocks, BLOCK)
    assert made.scales.shape == (outputs * blocks,)
    step = np.repeat(made.scales.reshape(outputs, blocks).T, BLOCK, axis=0)
    assert (np.abs(dequantize(made) - weight) <= step * 0.501).all()


def test_values_stay_symmetric_around_the_middle() -> None:
    weight = np.linspace(-3, 3, 2 * BLOCK, dtype=np.float32).reshape(-1, 1)
    values = quantize(weight).values
    assert values.min() >= 1
    assert values.max() == 255


def test_a_zero_block_stays_zero() -> None:
    made = quantize(np.zeros((BLOCK, 2), np.float32))
    assert (made.values == 128).all()
    assert (dequantize(made) == 0).all()


def test_inputs_must_fill_blocks() -> None:
    with pytest.raises(ValueError, match="multiples of 32, got 33"):
        quantize(np.zeros((33, 1), np.float32))
