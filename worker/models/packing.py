"""Packs matrices as ``BlockProduct`` reads them (cpp/include/orchid/block_product.h)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from worker.models.blocks import BLOCK, Matrix

# Outputs whose weights lie side by side.
GROUP = 32

_HALF = GROUP // 2
_QUAD = 4
_MIDDLE = 128


def pack(matrix: Matrix) -> NDArray[np.uint8]:
    """Return a q4 or q8 matrix as uint8 [groups, blocks, bytes], outputs padded to whole groups.

    Raises ValueError when its scales or minima are no half-precision numbers: none is rounded.
    """
    if matrix.scales is None:
        raise ValueError("expected a matrix in blocks, got a dense one")
    padding = -matrix.shape[0] % GROUP
    scales = _halves(matrix.scales, padding)
    values = np.pad(matrix.values, ((0, padding), (0, 0), (0, 0)))
    if matrix.minima is None:
        return _joined(scales, _quads((values.astype(np.int16) + _MIDDLE).astype(np.uint8)))
    half = BLOCK // 2
    nibbles = values.astype(np.uint8)
    packed = np.asarray(nibbles[..., :half] | (nibbles[..., half:] << 4), np.uint8)
    return _joined(scales, _halves(matrix.minima, padding), _quads(packed))


def gated_order(width: int) -> NDArray[np.int64]:
    """Return the order of the rows of stacked gate and up matrices for a product with ``swiglu``.

    A group has 16 gates and then their 16 ups; ``width`` is a multiple of 16.
    """
    gates = np.arange(width).reshape(-1, _HALF)
    return np.concatenate([gates, gates + width], axis=1).reshape(-1)


def unpacked(packed: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return the weights [groups * 32, inputs] that a packed matrix stands for, as float32."""
    groups, blocks, size = packed.shape
    four_bits = size == (2 + 2 + BLOCK // 2) * GROUP
    columns = [_floats(packed, 0)]
    header = 2 * GROUP
    if four_bits:
        columns.append(_floats(packed, header))
        header *= 2
    # [groups, blocks, quads, outputs, 4] -> [groups, outputs, blocks, values]
    quads = packed[..., header:].reshape(groups, blocks, -1, GROUP, _QUAD)
    values = quads.transpose(0, 3, 1, 2, 4).reshape(groups, GROUP, blocks, -1)
    if four_bits:
        values = np.concatenate([values & 15, values >> 4], axis=-1)
    numbers = values.astype(np.float32) - np.float32(0 if four_bits else _MIDDLE)
    weights = columns[0][..., None] * numbers
    if four_bits:
        weights += columns[1][..., None]
    result: NDArray[np.float32] = weights.reshape(groups * GROUP, blocks * BLOCK)
    return result


def _halves(numbers: NDArray[np.float32], padding: int) -> NDArray[np.uint8]:
    """Return [outputs, blocks] as bytes [groups, blocks, 64] of half precision."""
    with np.errstate(over="ignore"):
        halves = numbers.astype("<f2")
    if not np.array_equal(halves.astype(np.float32), numbers):
        raise ValueError("expected scales and minima in half precision")
    padded = np.pad(halves, ((0, padding), (0, 0)))
    groups = padded.reshape(-1, GROUP, padded.shape[1]).transpose(0, 2, 1)
    return np.ascontiguousarray(groups).view(np.uint8)


def _quads(values: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return [outputs, blocks, n] as [groups, blocks, n * 32], each output's bytes in fours."""
    outputs, blocks, count = values.shape
    quads = values.reshape(outputs // GROUP, GROUP, blocks, count // _QUAD, _QUAD)
    return np.ascontiguousarray(quads.transpose(0, 2, 3, 1, 4)).reshape(
        outputs // GROUP, blocks, count * GROUP
    )


def _joined(*parts: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return np.concatenate(parts, axis=-1)


def _floats(packed: NDArray[np.uint8], at: int) -> NDArray[np.float32]:
    """Return the half-precision numbers [groups, outputs, blocks] at a byte of each block."""
    halves = np.ascontiguousarray(packed[..., at : at + 2 * GROUP]).view("<f2")
    return halves.astype(np.float32).transpose(0, 2, 1)
