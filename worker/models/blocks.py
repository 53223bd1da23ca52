"""Weight matrices as they are stored: dense, or quantised in blocks of 32 inputs.

A quantised block stands for ``scale * value + minimum``. The forms of GGUF files are kept as they
are, so that a graph can multiply exactly the weights of the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

BLOCK = 32

Form = Literal["dense", "q4", "q8"]


@dataclass(frozen=True, slots=True)
class Matrix:
    """A matrix [outputs, inputs].

    ``dense``: ``values`` float32 [outputs, inputs], no scales. ``q4``: ``values`` uint8
    [outputs, blocks, 32] from 0 to 15, ``scales`` and ``minima`` float32 [outputs, blocks].
    ``q8``: ``values`` int8 [outputs, blocks, 32] and ``scales``.
    """

    form: Form
    values: NDArray[np.float32] | NDArray[np.uint8] | NDArray[np.int8]
    scales: NDArray[np.float32] | None = None
    minima: NDArray[np.float32] | None = None

    @staticmethod
    def dense(values: NDArray[np.float32]) -> Matrix:
        """Wrap float32 values [outputs, inputs]."""
        return Matrix("dense", values)

    @property
    def shape(self) -> tuple[int, int]:
        """Outputs and inputs."""
        outputs = self.values.shape[0]
        return outputs, int(self.values.size // outputs)

    def floats(self) -> NDArray[np.float32]:
        """Return the weights [outputs, inputs] as float32."""
        if self.scales is None:
            return np.asarray(self.values, np.float32)
        weights = self.scales[..., None] * self.values.astype(np.float32)
        if self.minima is not None:
            weights += self.minima[..., None]
        result: NDArray[np.float32] = weights.reshape(self.shape)
        return result

    def rows(self, order: NDArray[np.int64]) -> Matrix:
        """Return the matrix with its outputs in ``order``; scales and minima go along."""
        return Matrix(
            self.form,
            self.values[order],
            None if self.scales is None else self.scales[order],
            None if self.minima is None else self.minima[order],
        )


def stacked(parts: Sequence[Matrix]) -> Matrix:
    """Return one matrix with the outputs of ``parts`` one after the other.

    Parts of one form keep it, others become dense.
    """
    if len({part.form for part in parts}) > 1:
        return Matrix.dense(np.concatenate([part.floats() for part in parts]))
    scales = [part.scales for part in parts if part.scales is not None]
    minima = [part.minima for part in parts if part.minima is not None]
    return Matrix(
        parts[0].form,
        np.concatenate([part.values for part in parts]),
        np.concatenate(scales) if scales else None,
        np.concatenate(minima) if minima else None,
    )


def interleaved_rows(heads: int, head_dim: int) -> NDArray[np.int64]:
    """Return, for each row of a checkpoint's q or k projection, where a GGUF file has it.

    GGUF stores the two halves that RoPE pairs interleaved, [head, pair, half]; checkpoints and the
    operator have [head, half, pair].
    """
    stored = np.arange(heads * head_dim).reshape(heads, head_dim // 2, 2)
    return stored.swapaxes(1, 2).reshape(-1)


def from_q4_0(groups: NDArray[np.uint8]) -> Matrix:
    """Read Q4_0 [outputs, blocks, 18]: a half-precision scale, values 0 to 15 around 8."""
    scales = _halves(groups, 0)
    return Matrix("q4", _nibbles(groups[..., 2:]), scales, np.float32(-8) * scales)


def from_q4_1(groups: NDArray[np.uint8]) -> Matrix:
    """Read Q4_1 [outputs, blocks, 20]: half-precision scale and minimum, values 0 to 15."""
    return Matrix("q4", _nibbles(groups[..., 4:]), _halves(groups, 0), _halves(groups, 2))


def from_q8_0(groups: NDArray[np.uint8]) -> Matrix:
    """Read Q8_0 [outputs, blocks, 34]: a half-precision scale and signed values."""
    values = np.ascontiguousarray(groups[..., 2:]).view(np.int8)
    return Matrix("q8", values, _halves(groups, 0))


def four_bits(weights: NDArray[np.float32]) -> Matrix:
    """Round dense weights [outputs, inputs] to 4-bit blocks with a minimum, as Q4_1 has them."""
    blocks = weights.reshape(len(weights), -1, BLOCK)
    minima = blocks.min(axis=-1).astype(np.float16).astype(np.float32)
    scales = ((blocks.max(axis=-1) - minima) / 15).astype(np.float16).astype(np.float32)
    divisor = np.where(scales > 0, scales, np.float32(1))[..., None]
    values = np.clip(np.rint((blocks - minima[..., None]) / divisor), 0, 15).astype(np.uint8)
    return Matrix("q4", values, scales, minima)


def eight_bits(weights: NDArray[np.float32]) -> Matrix:
    """Round dense weights [outputs, inputs] to signed 8-bit blocks, as Q8_0 has them."""
    blocks = weights.reshape(len(weights), -1, BLOCK)
    scales = (np.abs(blocks).max(axis=-1) / 127).astype(np.float16).astype(np.float32)
    divisor = np.where(scales > 0, scales, np.float32(1))[..., None]
    values = np.clip(np.rint(blocks / divisor), -127, 127).astype(np.int8)
    return Matrix("q8", values, scales)


def _halves(groups: NDArray[np.uint8], at: int) -> NDArray[np.float32]:
    pair = np.ascontiguousarray(groups[..., at : at + 2])
    return pair.view("<f2")[..., 0].astype(np.float32)


def _nibbles(packed: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Unpack: a block's first half lies in the low nibbles, its second in the high ones."""
    result: NDArray[np.uint8] = np.concatenate([packed & 15, packed >> 4], axis=-1)
    return result
