"""A distribution kept as plain integers: what a measurement may cost on a request's path."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

_MS = 1_000_000
# Upper bounds of times, in ns: 1 ms to 60 s, finest where deadlines usually are.
TIMES_NS = [
    *(1 * _MS, 2_500_000, 5 * _MS, 7_500_000, 10 * _MS, 25 * _MS, 50 * _MS, 75 * _MS),
    *(100 * _MS, 150 * _MS, 250 * _MS, 500 * _MS, 750 * _MS, 1000 * _MS, 2500 * _MS),
    *(5000 * _MS, 10_000 * _MS, 30_000 * _MS, 60_000 * _MS),
]
# Requests in one run.
SIZES = [1, 2, 4, 8, 16, 32, 64]
# Measured over predicted time, in thousandths.
RATIOS = [500, 750, 900, 950, 1000, 1050, 1100, 1250, 1500, 2000, 4000]


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
