"""Weight-only 8-bit quantisation in blocks, the form MatMulNBits takes.

Each output column is cut into blocks of 32 inputs; a block has one scale, and its values are
stored unsigned around 128. Activations are quantised by the kernel per row and block, so an
answer does not depend on what else is in the batch, and nothing saturates on machines without
8-bit dot products.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

BLOCK = 32
BITS = 8
# Accuracy level 4 lets the kernel multiply 8-bit activations instead of unpacking to floats.
ACCURACY_LEVEL = 4
_LIMIT = 127


@dataclass(frozen=True, slots=True)
class Blocks:
    """A matrix: ``values`` uint8 [outputs, blocks, 32], ``scales`` float32 [outputs * blocks]."""

    values: NDArray[np.uint8]
    scales: NDArray[np.float32]


def quantize(weight: NDArray[np.float32]) -> Blocks:
    """Quantise ``weight`` [inputs, outputs] symmetrically, rounding to nearest.

    Raises ValueError when the number of inputs is not a multiple of the block.
    """
    inputs, outputs = weight.shape
    if inputs % BLOCK:
        raise ValueError(f"expected inputs in multiples of {BLOCK}, got {inputs}")
    blocks = np.ascontiguousarray(weight.T).reshape(outputs, inputs // BLOCK, BLOCK)
    scales = np.abs(blocks).max(axis=2) / np.float32(_LIMIT)
    divisor = np.where(scales > 0, scales, np.float32(1))[:, :, None]
    values = np.rint(blocks / divisor).astype(np.int16) + (1 << (BITS - 1))
    return Blocks(values.astype(np.uint8), scales.reshape(-1))


def dequantize(blocks: Blocks) -> NDArray[np.float32]:
    """Return the matrix [inputs, outputs] that the blocks stand for."""
    outputs, count, _ = blocks.values.shape
    signed = blocks.values.astype(np.float32) - np.float32(1 << (BITS - 1))
    scaled = signed * blocks.scales.reshape(outputs, count, 1)
    result: NDArray[np.float32] = np.ascontiguousarray(scaled.reshape(outputs, -1).T)
    return result
