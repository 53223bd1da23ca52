"""Whether chances come true: predicted against observed on-time shares, by decile."""

from __future__ import annotations

from typing import NamedTuple

DECILES = 10


class Decile(NamedTuple):
    """Runs whose chance was within one tenth: how many, the mean chance, the share on time."""

    runs: int
    predicted: float
    observed: float


class Sums(NamedTuple):
    """Totals of one tenth: runs, the chances they were given, and those on time."""

    runs: int
    chances: float
    on_time: int


class Calibration:
    """Counts of runs that ended, by the chance they were given at dispatch."""

    __slots__ = ("_chances", "_on_time", "_runs")

    def __init__(self) -> None:
        self._runs = [0] * DECILES
        self._on_time = [0] * DECILES
        self._chances = [0.0] * DECILES

    def settle(self, chance: float, on_time: bool) -> None:
        """A run that was given this chance (0 to 1) is over."""
        decile = min(int(chance * DECILES), DECILES - 1)
        self._runs[decile] += 1
        self._on_time[decile] += on_time
        self._chances[decile] += chance

    def sums(self) -> list[Sums]:
        """Totals that only grow, from the least to the most likely."""
        columns = zip(self._runs, self._chances, self._on_time, strict=True)
        return [Sums(runs, chances, on_time) for runs, chances, on_time in columns]

    def deciles(self) -> list[Decile]:
        """From the least to the most likely; a decile without runs is all zero."""
        columns = zip(self._runs, self._chances, self._on_time, strict=True)
        return [
            Decile(runs, chances / runs, on_time / runs) if runs else Decile(0, 0.0, 0.0)
            for runs, chances, on_time in columns
        ]
