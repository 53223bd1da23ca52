"""When requests arrive: processes of a mean rate, drawn from a generator that is passed in."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Seconds = NDArray[np.float64]


class ArrivalProcess(Protocol):
    """A point process over a span."""

    def times_s(self, generator: np.random.Generator, span_s: float) -> Seconds:
        """Arrival times in seconds from 0 to `span_s`, in order."""


@dataclass(frozen=True, slots=True)
class Poisson:
    """Independent arrivals at `rate_per_s`."""

    rate_per_s: float

    def times_s(self, generator: np.random.Generator, span_s: float) -> Seconds:
        """Arrival times in seconds, in order."""
        return _uniform(generator, self.rate_per_s, 0.0, span_s)


@dataclass(frozen=True, slots=True)
class MarkovModulated:
    """Poisson at a rate that switches between a quiet and a busy phase (MMPP of two states).

    Phases last exponentially, `quiet_s` and `busy_s` on average, at `quiet` and `busy`
    times `rate_per_s`. The defaults have the mean rate `rate_per_s`.
    """

    rate_per_s: float
    quiet: float = 0.5
    busy: float = 2.5
    quiet_s: float = 1.5
    busy_s: float = 0.5

    def times_s(self, generator: np.random.Generator, span_s: float) -> Seconds:
        """Arrival times in seconds, in order."""
        parts = []
        begin, busy = 0.0, False
        while begin < span_s:
            lasts = float(generator.exponential(self.busy_s if busy else self.quiet_s))
            end = min(span_s, begin + lasts)
            factor = self.busy if busy else self.quiet
            parts.append(_uniform(generator, self.rate_per_s * factor, begin, end))
            begin, busy = begin + lasts, not busy
        return np.concatenate(parts)


@dataclass(frozen=True, slots=True)
class FlashCrowd:
    """Poisson at `rate_per_s`, times `peak` from `begin_s` for `lasts_s` seconds."""

    rate_per_s: float
    peak: float = 3.0
    begin_s: float = 5.0
    lasts_s: float = 5.0

    def times_s(self, generator: np.random.Generator, span_s: float) -> Seconds:
        """Arrival times in seconds, in order."""
        begin = min(self.begin_s, span_s)
        end = min(self.begin_s + self.lasts_s, span_s)
        return np.concatenate(
            [
                _uniform(generator, self.rate_per_s, 0.0, begin),
                _uniform(generator, self.rate_per_s * self.peak, begin, end),
                _uniform(generator, self.rate_per_s, end, span_s),
            ]
        )


ARRIVALS = ("poisson", "mmpp", "flash")


def process(kind: str, rate_per_s: float, span_s: float) -> ArrivalProcess:
    """The process called `kind`; a flash crowd comes after a third of the span.

    Raises ValueError for another name and for a rate that is not above 0.
    """
    if not (rate_per_s > 0.0 and math.isfinite(rate_per_s)):
        raise ValueError(f"the rate must be above 0, got {rate_per_s}")
    if kind == "poisson":
        return Poisson(rate_per_s)
    if kind == "mmpp":
        return MarkovModulated(rate_per_s)
    if kind == "flash":
        return FlashCrowd(rate_per_s, begin_s=span_s / 3.0, lasts_s=min(5.0, span_s / 6.0))
    raise ValueError(f"unknown arrivals {kind!r}; known: {', '.join(ARRIVALS)}")


def _uniform(generator: np.random.Generator, rate: float, begin: float, end: float) -> Seconds:
    count = int(generator.poisson(max(0.0, rate * (end - begin))))
    return np.sort(generator.uniform(begin, end, count))
