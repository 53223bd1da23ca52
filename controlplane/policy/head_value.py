"""What the future is worth, by the age of a queue's head: a small Markov decision process.

All workers are taken for one that is as many times as fast and serves first come, first
served. When it frees, the state is the age x of the head. Variant k earns its quality
times the chance to be on time; it takes `tau_k = p_k / c` of the pooled worker, after which
the next head has the age `max(0, x + tau_k - A)` for the time A between two arrivals,
exponential with the arrival rate. Every decision disposes of one request, so the average
reward of a decision, g, is the accurate goodput:

    h(x) + g = max_k { q_k P_k(x) + E h((x + tau_k - A)+) }  or  E h((x - A)+) for a drop.

A cascade is variant j first and, where that pays, k after it: the decision earns as j does, and
the option to escalate on top, which is worth

    P_jk(x) F((E h((x + tau_j - A)+) - E h((x + tau_j + tau_k - A)+)) / P_jk(x))

for the chance P_jk that both are on time and the worth F of an option at a price (`cascade.Pair`):
the future that the second run costs is the price of what it gains.

Solved for a ladder of arrival rates at once, by relative value iteration on a grid of ages.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_Floats = NDArray[np.float64]

# Steps of age up to the deadline, and rungs of the ladder of arrival rates.
_STEPS = 48
_RATES = 20
# The ladder ends at these multiples of the rates at which the slowest and the fastest
# variant fill the workers.
_LOWEST_LOAD = 0.2
_HIGHEST_LOAD = 1.5
# Largest change in a round, in units of quality, at which the iteration has converged.
_TOLERANCE = 1e-3
# Changes in a round that move no decision, nor do all that would follow.
_STILL = 1e-5
# A second run that is less likely to be on time is not worth a price.
_UNLIKELY = 1e-3


class Option(NamedTuple):
    """A cascade as the values know it: the place of its first variant among the shares, what both
    runs take of the pooled worker, and the worth of the option at rising prices from 0 on.
    """

    first: int
    share_ns: float
    prices: Sequence[float]
    worth: Sequence[float]


class HeadValues:
    """h(x) and E h((x - A)+) for one set of pooled services tau_k; times in ns.

    `converged` says that more rounds would change nothing, `settled` that this was so at least
    once, `ready` that it was for the rates that matter: values of a crowd that never was take long.
    """

    __slots__ = ("_after", "_at", "_chances", "_columns", "_curves", "_firsts", "_later", "_likely",
                 "_lowest", "_mean", "_options", "_parts", "_rates", "_rewards", "_size", "_slopes",
                 "_spacing", "_steady", "_step_ns", "_still", "_values", "converged", "ready",
                 "settled")  # fmt: skip

    def __init__(
        self, deadline_ns: float, shares_ns: Sequence[float], options: Sequence[Option] = ()
    ) -> None:
        """`deadline_ns` above 0; `shares_ns` are the tau_k. Values are zero until `improve`.

        A share longer than the deadline counts as the deadline: after it, all is lost either way.
        """
        shares_ns = [min(share, deadline_ns) for share in shares_ns]
        both_ns = [min(option.share_ns, deadline_ns) for option in options]
        longest = max([*shares_ns, *both_ns])
        slowest = max(shares_ns)
        low, high = _LOWEST_LOAD / slowest, _HIGHEST_LOAD / min(shares_ns)
        self.converged = self.settled = self.ready = False
        # The rates whose values have converged at least once.
        self._steady: NDArray[np.bool_] = np.zeros(_RATES, dtype=np.bool_)
        self._step_ns = deadline_ns / _STEPS
        self._size = _STEPS + 2 + math.ceil(longest / self._step_ns)
        self._rates = np.geomspace(low, high, _RATES)
        self._lowest = low
        self._spacing = math.log(high / low) / (_RATES - 1)
        self._mean = _averaging(self._rates * self._step_ns, self._size)
        steps = np.array([*shares_ns, *both_ns]) / self._step_ns
        whole = np.floor(steps).astype(np.intp)
        self._columns = whole[:, None] + np.arange(self._size)
        self._parts: _Floats = (steps - whole)[:, None]
        self._firsts = np.array([option.first for option in options], dtype=np.intp)
        self._options = len(options)
        self._curves = [(np.array(each.prices), np.array(each.worth)) for each in options]
        self._chances: _Floats = np.zeros((len(options), self._size))
        # The same, but 1 where it is 0: what prices are divided by.
        self._likely: _Floats = np.ones((len(options), self._size))
        self._rewards: _Floats = np.zeros((len(shares_ns), self._size))
        self._values: _Floats = np.zeros((_RATES, self._size))
        # So many rates, from the lowest on, are left out of rounds: nothing moves there.
        self._still = 0
        # E h((x - A)+) of the values, on the grid and as far again beyond it, and its slopes.
        self._later: _Floats = np.zeros((_RATES, 2 * self._size))
        self._slopes: _Floats = np.zeros((_RATES, 2 * self._size - 1))
        self._at: list[list[float]] = []
        self._after: list[list[float]] = []

    def ages_ns(self) -> list[float]:
        """The ages of the grid, from 0 up to the deadline."""
        return [place * self._step_ns for place in range(_STEPS + 1)]

    def earn(
        self, rewards: Sequence[Sequence[float]], chances: Sequence[Sequence[float]] = ()
    ) -> None:
        """Set what each variant earns at each of `ages_ns`; beyond the deadline it is nothing.

        `chances` are those of each option that both its runs are on time.
        """
        moved = _put(np.array(rewards), self._rewards[:, : _STEPS + 1])
        if self._options:
            likely = np.array(chances)
            likely[likely <= _UNLIKELY] = 0.0
            if _put(likely, self._chances[:, : _STEPS + 1]):
                self._likely = np.where(self._chances > 0.0, self._chances, 1.0)
                moved = True
        if moved:
            self._still, self.converged = 0, False

    def improve(self, rounds: int, rate_per_ns: float = math.inf) -> None:
        """Iterate so many times; values up to that rate are what matters.

        Rates at which nothing moves any more, from the lowest on, are left out until rewards move.
        """
        still = self._still
        if still < _RATES:
            moved = self._rounds(rounds, still)
            self._steady[still:] |= moved < _TOLERANCE
            self.converged = bool(np.all(moved < _TOLERANCE))
            self._still = still + int(np.argmax(np.append(moved >= _STILL, True)))
            self._at[still:] = self._values[still:].tolist()
            self._after[still:] = self._later[still:, : self._size].tolist()
        self.settled = self.settled or self.converged
        # The rung above the rate counts, too.
        rungs = int(np.searchsorted(self._rates, rate_per_ns)) + 1
        self.ready = self.settled or bool(np.all(self._steady[:rungs]))

    def carry(self, before: HeadValues) -> None:
        """Start from values that were found for a similar service."""
        columns = np.minimum(np.arange(self._size), before._size - 1)
        self._values[:] = before._values[:, columns]
        self._look_ahead(0)
        self.settled, self.ready = before.settled, before.ready
        self._steady = before._steady

    def at(self, rate_per_ns: float, ages_ns: Sequence[float]) -> list[float]:
        """h when the next head has each of these ages."""
        return self._look_up(self._at, rate_per_ns, ages_ns)

    def after(self, rate_per_ns: float, times_ns: Sequence[float]) -> list[float]:
        """E h((t - A)+), when nobody is behind the head, after each of these times."""
        return self._look_up(self._after, rate_per_ns, times_ns)

    def _look_up(
        self, rows: list[list[float]], rate_per_ns: float, ages_ns: Sequence[float]
    ) -> list[float]:
        """Bilinear in age and logarithm of the rate; the edges hold beyond the grid."""
        rung = math.log(max(rate_per_ns / self._lowest, 1.0)) / self._spacing
        rung = min(rung, _RATES - 1.001)
        row = int(rung)
        height = rung - row
        lower, upper = rows[row], rows[row + 1]
        last, step = self._size - 1.001, self._step_ns
        found = []
        for age in ages_ns:
            place = min(age / step, last)
            column = int(place)
            part = place - column
            low = lower[column] + part * (lower[column + 1] - lower[column])
            high = upper[column] + part * (upper[column + 1] - upper[column])
            found.append(low + height * (high - low))
        return found

    def _rounds(self, rounds: int, still: int) -> _Floats:
        """So many rounds for the rates from `still` on; by how much the last one moved each."""
        values, later = self._values[still:], self._later[still:]
        slopes, rewards, ones = self._slopes[still:], self._rewards, len(self._rewards)
        # E h((x + tau - A)+) for every share of so many steps, whole ones and a part of one.
        shifted = np.empty((len(values), len(self._columns), self._size))
        steps = np.empty_like(shifted)
        runs, moved = shifted[:, :ones], np.zeros(len(values))
        for left in range(rounds - 1, -1, -1):
            # Other modes than "clip" buffer what they write; no column is beyond the end.
            slopes.take(self._columns, 1, steps, "clip")
            later.take(self._columns, 1, shifted, "clip")
            np.multiply(steps, self._parts, steps)
            np.add(shifted, steps, shifted)
            options = self._optional(shifted) if self._options else None
            np.add(runs, rewards, runs)
            best = runs.max(1)
            np.maximum(best, later[:, : self._size], out=best)
            if options is not None:
                options += runs.take(self._firsts, 1)
                np.maximum(best, options.max(1), out=best)
            if not left:
                moved = np.ptp(best - values, axis=1)
            np.subtract(best, best[:, :1], values)
            self._look_ahead(still)
        return moved

    def _optional(self, shifted: _Floats) -> _Floats:
        """What each option is worth at the price that its second run costs of the future."""
        costs = shifted.take(self._firsts, 1)
        costs -= shifted[:, len(self._rewards) :]
        costs /= self._likely
        for place, (prices, worth) in enumerate(self._curves):
            costs[:, place] = np.interp(costs[:, place], prices, worth)
        costs *= self._chances
        return costs

    def _look_ahead(self, still: int) -> None:
        """Make `_later` and `_slopes` those of the values, for the rates from `still` on."""
        later, size = self._later[still:], self._size
        later[:, :size] = np.matmul(self._values[still:, None, :], self._mean[still:])[:, 0, :]
        later[:, size:] = later[:, size - 1 : size]
        np.subtract(later[:, 1:], later[:, :-1], self._slopes[still:])


def _put(rows: _Floats, into: _Floats) -> bool:
    """Write rows into an array if that moves it; whether it did.

    Where it does not, what stands there stays: many small steps are seen in the end.
    """
    moved = bool(np.max(np.abs(rows - into), initial=0.0) > _STILL)
    if moved:
        into[:] = rows
    return moved


def _averaging(passed: _Floats, size: int) -> _Floats:
    """Matrices [rate, from, to] that take h on the grid to E h((x - A)+), h linear between.

    `passed` is the mean number of arrivals in one step of age. Over one step back,
    `E(y + step) = e E(y) + inner h(y + step) + outer h(y)` with `e = exp(-passed)`.
    """
    decay = np.exp(-passed)
    mean = -np.expm1(-passed) / passed
    inner, outer = 1.0 - mean, mean - decay
    matrices = np.zeros((len(passed), size, size))
    matrices[:, 0, 0] = 1.0
    for place in range(1, size):
        matrices[:, :, place] = decay[:, None] * matrices[:, :, place - 1]
        matrices[:, place, place] += inner
        matrices[:, place - 1, place] += outer
    return matrices
