"""Interval estimates for measured quality."""

from __future__ import annotations

import math

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
