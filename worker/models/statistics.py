"""Interval estimates for measured quality."""

from __future__ import annotations

import math
from collections.abc import Sequence

from worker.models.manifest import QualityEvidence


def wilson_interval(successes: int, n: int, z: float = 1.959964) -> tuple[float, float]:
    """Return the Wilson score interval of a proportion (Wilson 1927), 95 % by default.

    ``center = (p + z^2/2n) / (1 + z^2/n)``, half width
    ``z / (1 + z^2/n) * sqrt(p(1-p)/n + z^2/4n^2)``. Raises ValueError when n < 1.
    """
    if n < 1 or not 0 <= successes <= n:
        raise ValueError(f"expected 0 <= successes <= n and n >= 1, got {successes} of {n}")
    share = successes / n
    scale = 1.0 + z * z / n
    center = (share + z * z / (2 * n)) / scale
    half = z / scale * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return max(0.0, center - half), min(1.0, center + half)


def accuracy_evidence(population: str, correct: int, n: int) -> QualityEvidence:
    """Return the accuracy of ``correct`` right answers among ``n`` as quality evidence."""
    low, high = wilson_interval(correct, n)
    return QualityEvidence(population, "accuracy", correct / n, n, low, high)


def difference_interval(one: QualityEvidence, other: QualityEvidence) -> tuple[float, float]:
    """Return the 95 % interval of ``one.value - other.value`` for proportions of unpaired samples.

    Newcombe's (1998) hybrid of the two Wilson intervals; wider than need be when both were
    measured on the same items.
    """
    between = one.value - other.value
    down = math.hypot(one.value - one.low, other.high - other.value)
    up = math.hypot(one.high - one.value, other.value - other.low)
    return between - down, between + up


def paired_difference(
    one: Sequence[bool], other: Sequence[bool], z: float = 1.959964
) -> tuple[float, float, float]:
    """Return the difference of two shares on the same items with its interval, 95 % by default.

    Bonett and Price's (2012) adjusted Wald interval: with b items right only in ``one`` and c
    only in ``other``, p = (b+1)/(n+2) and q = (c+1)/(n+2), it is
    ``p - q +- z sqrt((p + q - (p - q)^2) / (n + 2))``. Raises ValueError for unequal lengths.
    """
    if len(one) != len(other) or not one:
        raise ValueError(f"expected as many items, and some, got {len(one)} and {len(other)}")
    n = len(one)
    b = sum(a and not c for a, c in zip(one, other, strict=True))
    c = sum(d and not a for a, d in zip(one, other, strict=True))
    p, q = (b + 1) / (n + 2), (c + 1) / (n + 2)
    half = z * math.sqrt((p + q - (p - q) ** 2) / (n + 2))
    return (b - c) / n, p - q - half, p - q + half
