"""What a step of a decoder costs, fitted to measured steps, and the steps that are measured.

time = step + prefill * chunk tokens + sequence * decoding sequences + cached * tokens before
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from worker.profile import nonnegative_least_squares
from worker.scheduling.blocks import BLOCK_TOKENS
from worker.scheduling.cost import StepCost, StepLoad

# Percentiles one standard deviation around the middle; a few disturbed runs do not move them.
_ONE_SIGMA = (15.87, 84.13)
# What is not seen to cost anything must still not be taken for free.
_LEAST_US = 1e-3
_SHORT, _LONG = 32, 256
_CHUNKS = (16, 64, 128)
_FEW, _MANY = 4, 8


@dataclass(frozen=True, slots=True)
class StepShape:
    """A step to measure: `chunk` tokens of a new prompt, and `decoding` sequences of `past`."""

    chunk: int
    decoding: int
    past: int

    @property
    def load(self) -> StepLoad:
        """What the scheduler sees in it."""
        return StepLoad(self.chunk, self.decoding, self.decoding * self.past)


@dataclass(frozen=True, slots=True)
class StepSample:
    """One measured step."""

    shape: StepShape
    elapsed_us: float


def step_shapes(context: int) -> tuple[StepShape, ...]:
    """Steps that tell the four costs apart, cut to what a sequence may hold; longest first."""
    # A decoding sequence needs room for the token it adds.
    long = min(_LONG, (context - 1) // BLOCK_TOKENS * BLOCK_TOKENS)
    short = min(_SHORT, long)
    chunks = sorted({min(chunk, context) for chunk in _CHUNKS}, reverse=True)
    shapes = [StepShape(chunk, 0, 0) for chunk in chunks]
    shapes += [
        StepShape(0, _MANY, long),
        StepShape(0, _MANY, short),
        StepShape(0, _FEW, long),
        StepShape(0, 1, long),
        StepShape(0, 1, short),
        StepShape(min(chunks), _FEW, long),
    ]
    # Without room for a past there is nothing to decode on but the prompt itself.
    return tuple(dict.fromkeys(s for s in shapes if s.past or not s.decoding))


def fit_steps(samples: Sequence[StepSample]) -> StepCost:
    """Fits the costs to the median time of each shape, by relative least squares.

    Raises ValueError without samples.
    """
    if not samples:
        raise ValueError("expected at least one measured step to fit, got none")
    by_shape: dict[StepShape, list[float]] = {}
    for sample in samples:
        by_shape.setdefault(sample.shape, []).append(sample.elapsed_us)
    shapes = list(by_shape)
    medians = np.array([np.median(by_shape[shape]) for shape in shapes])
    terms = np.array([[1.0, *shape.load] for shape in shapes])
    found = nonnegative_least_squares(terms / medians[:, None], np.ones(len(shapes)))
    step, prefill, sequence, cached = (float(each) for each in found)
    cost = StepCost(max(step, _LEAST_US), max(prefill, _LEAST_US), sequence, cached)
    ratios = [sample.elapsed_us / predict_us(cost, sample.shape) for sample in samples]
    sigma = float(np.diff(np.percentile(ratios, _ONE_SIGMA))[0] / 2)
    return StepCost(cost.step_us, cost.prefill_us_per_token, sequence, cached, round(sigma, 4))


def predict_us(cost: StepCost, shape: StepShape) -> float:
    """Predicted time of a step."""
    return (cost.prefill_ns(shape.load) + cost.decode_ns(shape.load)) / 1e3
