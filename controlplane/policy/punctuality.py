"""How long runs really take against what was foretold: the empirical chance to be on time."""

from __future__ import annotations

import math
from itertools import pairwise

# Bins of a sixteenth of an octave, from a quarter to eight times the prediction.
_PER_OCTAVE = 16
_LOWEST = -2
_BINS = _PER_OCTAVE * 5
_ONE = -_LOWEST * _PER_OCTAVE
# Sums are kept for blocks of bins, so that a share costs two short sums and no bin a rebuild.
_BLOCK = 8
# Weights are integers, whose sums are exact in any order.
_UNIT = 1 << 16
# What the profile's spread counts for, in observations, and how much each new one fades the old.
_PRIOR = 40.0
_FADING = 0.005
# Profiles are taken on a quiet worker; this share of the prior is for what else may happen.
_SURPRISE = 0.01
# New weights grow instead of all the others fading; they are scaled back before they overflow.
_LARGEST_WEIGHT = 1e6
# A miss that was not foreseen moves the margin by this, a hit by as much as it was doubted.
_MARGIN_GAIN = 0.02
_LARGEST_MARGIN = 1.5


class Punctuality:
    """Distribution of the time that runs need over the time that was predicted for them.

    A histogram over the logarithm of the ratio, in which every observation fades the older
    ones by 0.5 %. It starts as a lognormal distribution of the profile's spread. `margin`
    (1 to 1.5) stretches predictions while fewer runs are on time than was foretold.
    """

    __slots__ = ("_blocks", "_total", "_weight", "_weights", "margin")

    def __init__(self, sigma: float) -> None:
        """`sigma` is the relative spread that the profile measured."""
        self._weights = [int(weight * _UNIT) for weight in _prior(sigma)]
        self._blocks: list[int] = []
        self._total = 0
        self._weight = 1.0
        self.margin = 1.0
        self._sum_up()

    def observe(self, ratio: float, weight: float = 1.0) -> None:
        """A run needed `ratio` times its prediction; a `weight` below 1 is for hearsay."""
        self.add(bin_of(ratio), weight)

    def add(self, place: int, weight: float) -> None:
        """The same for the ratio's bin, as `bin_of` gives it."""
        self._fade(weight)
        added = int(self._weight * weight * _UNIT)
        self._weights[place] += added
        self._blocks[place // _BLOCK] += added
        self._total += added

    def at_least(self, ratio: float) -> None:
        """A run was cut short at `ratio`: its weight goes to all that needed longer."""
        self._fade(1.0)
        weights, first = self._weights, bin_of(ratio)
        longer, added = sum(weights[first:]), int(self._weight * _UNIT)
        if longer > 0:
            weights[first:] = [weight + weight * added // longer for weight in weights[first:]]
        else:
            weights[first] += added
        self._sum_up()

    def settle(self, chance: float, on_time: bool) -> None:
        """A run that was given this chance is over: keep the margin where both agree."""
        moved = self.margin + _MARGIN_GAIN * (chance - on_time)
        self.margin = min(max(moved, 1.0), _LARGEST_MARGIN)

    def share_within(self, ratio: float) -> float:
        """The share of runs that need at most `ratio` times their prediction, with margin."""
        if ratio <= 0.0:
            return 0.0
        place = math.log2(ratio / self.margin) * _PER_OCTAVE + _ONE
        if place <= 0.0:
            return 0.0
        if place >= _BINS:
            return 1.0
        whole = int(place)
        block = whole // _BLOCK
        lower = sum(self._blocks[:block]) + sum(self._weights[block * _BLOCK : whole])
        return (lower + (place - whole) * self._weights[whole]) / self._total

    def _fade(self, weight: float) -> None:
        self._weight /= 1.0 - _FADING * weight
        if self._weight > _LARGEST_WEIGHT:
            self._weights = [int(kept / self._weight) for kept in self._weights]
            self._weight = 1.0
            self._sum_up()

    def _sum_up(self) -> None:
        weights = self._weights
        self._blocks = [sum(weights[at : at + _BLOCK]) for at in range(0, _BINS, _BLOCK)]
        self._total = sum(weights)


def bin_of(ratio: float) -> int:
    """The histogram's bin of a ratio of needed over foretold time."""
    if ratio <= 0.0:
        return 0
    return min(max(int(math.log2(ratio) * _PER_OCTAVE + _ONE), 0), _BINS - 1)


def _prior(sigma: float) -> list[float]:
    """Weights of a lognormal distribution of mean-free logarithm, and some surprise above 1."""
    scale = math.sqrt(2.0 * math.log1p(max(sigma, 0.02) ** 2))
    edges = (math.log(2.0) * (place - _ONE) / _PER_OCTAVE for place in range(_BINS + 1))
    below = [0.5 * (1.0 + math.erf(edge / scale)) for edge in edges]
    surprise = _SURPRISE / (_BINS - _ONE)
    return [
        _PRIOR * ((1.0 - _SURPRISE) * (above - under) + (surprise if place >= _ONE else 0.0))
        for place, (under, above) in enumerate(pairwise(below))
    ]


# For predictions of which nothing is known but that they are good.
FORETOLD = Punctuality(0.0)
