"""Variant profiles, the Pareto frontier and which variants may answer a request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from controlplane.policy.records import Shape


@dataclass(frozen=True, slots=True)
class VariantProfile:
    """Service time of one run: `s0 + s1 * tokens + s2 * squared_tokens`, in nanoseconds.

    `tokens` and `squared_tokens` are summed over every sequence of the run. `sigma` is
    the relative spread of measured over predicted, `reference_tokens` the length at
    which the percentiles were taken.
    """

    s0_ns: float
    s1_ns: float
    s2_ns: float = 0.0
    sigma: float = 0.0
    reference_tokens: int = 0
    p50_ns: float = 0.0
    p95_ns: float = 0.0
    p99_ns: float = 0.0
    samples: int = 0

    def predict(self, shape: Shape, batch: Sequence[Shape] = ()) -> int:
        """Nominal service time in ns of one run of `shape` together with `batch`."""
        tokens, squared = shape.tokens, shape.squared_tokens
        for other in batch:
            tokens += other.tokens
            squared += other.squared_tokens
        return max(1, int(self.s0_ns + self.s1_ns * tokens + self.s2_ns * squared))
