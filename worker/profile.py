"""How a variant's service time grows with the tokens of a run, fitted to measured runs.

    time = s0 + s1 * tokens + s2 * sum(length^2)

s0 is the price of any run, s1 of a token (projections and feed-forward), s2 of attention.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# Lengths that are measured when the manifest declares none.
DEFAULT_LENGTHS = (8, 16, 32, 64, 128)
# A sentence or two: variants are compared, and their percentiles taken, near this length.
_USUAL_TOKENS = 32
_LONGEST_USUAL = 128
_LONG_FACTOR = 4
# Percentiles one standard deviation around the middle; a few disturbed runs do not move them.
_ONE_SIGMA = (15.87, 84.13)


@dataclass(frozen=True, slots=True)
class Sample:
    """One measured run: the lengths of its sequences, in tokens, and its service time."""

    lengths: tuple[int, ...]
    elapsed_us: float


@dataclass(frozen=True, slots=True)
class VariantProfile:
    """The fitted service time of one variant, in microseconds.

    p50, p95 and p99 are of single runs of `reference_tokens`; `sigma` is the relative
    spread of measured over predicted; `samples` counts the runs behind it all.
    """

    variant: str
    s0_us: float
    s1_us_per_token: float
    s2_us_per_token2: float
    reference_tokens: int
    p50_us: float
    p95_us: float
    p99_us: float
    sigma: float
    samples: int

    def predict_us(self, lengths: Sequence[int]) -> float:
        """Predicted service time of a run of sequences of these lengths."""
        tokens = sum(lengths)
        squares = sum(length * length for length in lengths)
        return self.s0_us + self.s1_us_per_token * tokens + self.s2_us_per_token2 * squares


@dataclass(frozen=True, slots=True)
class WarmPlan:
    """Shapes that a warm-up runs: some in every pass, the `long` ones once."""

    shapes: tuple[tuple[int, ...], ...]
    long: tuple[tuple[int, ...], ...]


def warm_plan(declared: Sequence[int], max_tokens: int) -> WarmPlan:
    """Each length alone, and all but the longest of the usual ones together.

    Lengths are the declared ones, or `DEFAULT_LENGTHS`, cut to `max_tokens`. Long ones take
    too much time to repeat, but attention's share shows only there: when none is declared,
    one several times as long as the longest is added. The mixed rows tell s1 from s2: the
    same tokens in more rows have a smaller sum of squares.
    """
    lengths = sorted({min(length, max_tokens) for length in declared or DEFAULT_LENGTHS})
    usual = [length for length in lengths if length <= _LONGEST_USUAL] or lengths[:1]
    long = lengths[len(usual) :] or [min(max_tokens, _LONG_FACTOR * usual[-1])]
    shapes: list[tuple[int, ...]] = [(length,) for length in usual]
    if len(usual) > 2:
        shapes.append(tuple(usual[:-1]))
    return WarmPlan(tuple(shapes), tuple((length,) for length in long if length > usual[-1]))


def reference_length(shapes: Sequence[tuple[int, ...]]) -> int:
    """The measured length of one sequence that is nearest to a usual text; 0 without any."""
    singles = (shape[0] for shape in shapes if len(shape) == 1)
    return min(singles, key=lambda length: abs(length - _USUAL_TOKENS), default=0)


def fit(
    variant: str, samples: Sequence[Sample], reference: int, *, quadratic: bool = True
) -> VariantProfile:
    """Fits the coefficients to the median time of each shape, by relative least squares.

    Relative, so that a long shape does not decide the price of a short one; medians, so
    that a run the machine disturbed does not either. s2 is left out unless `quadratic`: what
    is far larger than anything measured must not be priced by a square that is noise. Raises
    ValueError without samples.
    """
    if not samples:
        raise ValueError("expected at least one measured run to fit, got none")
    by_shape: dict[tuple[int, ...], list[float]] = {}
    for sample in samples:
        by_shape.setdefault(sample.lengths, []).append(sample.elapsed_us)
    shapes = list(by_shape)
    medians = np.array([np.median(by_shape[shape]) for shape in shapes])
    terms = np.array(
        [[1.0, sum(shape), sum(length * length for length in shape)] for shape in shapes]
    )
    if not quadratic:
        terms[:, 2] = 0.0
    s0, s1, s2 = nonnegative_least_squares(terms / medians[:, None], np.ones(len(shapes)))
    predicted = dict(zip(shapes, terms @ np.array([s0, s1, s2]), strict=True))
    ratios = np.array([sample.elapsed_us / predicted[sample.lengths] for sample in samples])
    at_reference = by_shape.get((reference,)) or [sample.elapsed_us for sample in samples]
    p50, p95, p99 = np.percentile(at_reference, [50, 95, 99])
    return VariantProfile(
        variant=variant,
        s0_us=float(s0),
        s1_us_per_token=float(s1),
        s2_us_per_token2=float(s2),
        reference_tokens=reference,
        p50_us=float(p50),
        p95_us=float(p95),
        p99_us=float(p99),
        sigma=float(np.diff(np.percentile(ratios, _ONE_SIGMA))[0] / 2),
        samples=len(samples),
    )


def nonnegative_least_squares(
    matrix: NDArray[np.float64], target: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The x >= 0 with the smallest |matrix x - target|; exact, for a few columns.

    The solution is an unconstrained one on its support, so every support is tried.
    """
    columns = matrix.shape[1]
    # Columns of like size keep the solver's notion of rank honest.
    scale = np.linalg.norm(matrix, axis=0)
    scaled = matrix / np.where(scale > 0, scale, 1.0)
    best = np.zeros(columns)
    smallest = float(target @ target)
    for size in range(1, columns + 1):
        for support in itertools.combinations(range(columns), size):
            part = scaled[:, support]
            solution, _, rank, _ = np.linalg.lstsq(part, target, rcond=None)
            if rank < size or (solution < 0).any():
                continue
            error = part @ solution - target
            square = float(error @ error)
            if square < smallest:
                smallest = square
                best = np.zeros(columns)
                best[list(support)] = solution
    return best / np.where(scale > 0, scale, 1.0)
