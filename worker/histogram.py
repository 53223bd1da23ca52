"""A distribution kept as plain integers: what a measurement may cost beside a run."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

_MS = 1_000_000
# Upper bounds of times, in ns: 1 ms to 60 s, as the control plane has them.
TIMES_NS = [
    *(1 * _MS, 2_500_000, 5 * _MS, 7_500_000, 10 * _MS, 25 * _MS, 50 * _MS, 75 * _MS),
    *(100 * _MS, 150 * _MS, 250 * _MS, 500 * _MS, 750 * _MS, 1000 * _MS, 2500 * _MS),
    *(5000 * _MS, 10_000 * _MS, 30_000 * _MS, 60_000 * _MS),
]
# Items of a run, or sequences of a step.
SIZES = [1, 2, 4, 8, 16, 32, 64]


class Histogram:
    """Counts of observations by upper bound, the last one for what is above, and their sum.

    One thread writes it. `bounds` are shared, never changed.
    """

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[int]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0

    def observe(self, value: int) -> None:
        """Take one value; a bound holds what equals it."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def copy(self) -> Histogram:
        """The same as it is now, for others to read."""
        fresh = Histogram(self.bounds)
        fresh.counts, fresh.sum = self.counts.copy(), self.sum
        return fresh
