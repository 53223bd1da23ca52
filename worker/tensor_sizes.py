"""Sizes at which a variant of tensors is tried, since nothing in it says what callers send."""

from __future__ import annotations

import math
from collections.abc import Sequence

from worker.models.manifest import TensorSpec

# Sizes go up to about this many elements, in steps of this factor.
_MOST_ELEMENTS = 1 << 20
_STEP = 4


def elements(inputs: Sequence[TensorSpec], free: int) -> int:
    """Elements of all inputs together when every free dimension is `free`."""
    return sum(math.prod(free if size < 0 else size for size in spec.shape) for spec in inputs)


def free_size(inputs: Sequence[TensorSpec], wanted: int) -> int:
    """The largest size of the free dimensions with at most `wanted` elements; at least 1."""
    free = 1
    if elements(inputs, 2) == elements(inputs, 1):
        return free
    while elements(inputs, 2 * free) <= wanted:
        free *= 2
    step = free
    while step := step // 2:
        if elements(inputs, free + step) <= wanted:
            free += step
    return free


def trial_sizes(inputs: Sequence[TensorSpec]) -> tuple[int, ...]:
    """Numbers of elements to try, growing; the first is that of ones for all free dimensions."""
    sizes = [elements(inputs, 1)]
    target = sizes[0] * _STEP
    while target <= _MOST_ELEMENTS:
        size = elements(inputs, free_size(inputs, target))
        if size > sizes[-1]:
            sizes.append(size)
        target *= _STEP
    return tuple(sizes)
