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

    __slots__ = ("_after", "_at", "_chances", "_curves", "_lowest", "_mean", "_options", "_rates",
                 "_rewards", "_shifts", "_size", "_spacing", "_steady", "_step_ns", "_values",
                 "converged", "ready", "settled")  # fmt: skip

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
        self._shifts = [divmod(share / self._step_ns, 1.0) for share in shares_ns]
        self._options = [
            (option.first, divmod(both / self._step_ns, 1.0))
            for option, both in zip(options, both_ns, strict=True)
        ]
        self._curves = [(np.array(each.prices), np.array(each.worth)) for each in options]
        self._chances: _Floats = np.zeros((len(options), self._size))
        self._rewards: _Floats = np.zeros((len(shares_ns), self._size))
        self._values: _Floats = np.zeros((_RATES, self._size))
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
        self._rewards[:, : _STEPS + 1] = rewards
        if self._options:
            self._chances[:, : _STEPS + 1] = chances

    def improve(self, rounds: int, rate_per_ns: float = math.inf) -> None:
        """Iterate so many times; values up to that rate are what matters."""
        moved = np.zeros(1)
        for _ in range(rounds):
            after = self._expected()
            best = after.copy()
            beyond = np.repeat(after[:, -1:], self._size, axis=1)
            later = np.concatenate((after, beyond), axis=1)
            for shift, reward in zip(self._shifts, self._rewards, strict=True):
                np.maximum(best, reward + self._shifted(later, shift), out=best)
            for place, (first, shift) in enumerate(self._options):
                alone = self._shifted(later, self._shifts[first])
                option = self._option(place, alone - self._shifted(later, shift))
                np.maximum(best, self._rewards[first] + alone + option, out=best)
            moved = best - self._values
            self._values = best - best[:, :1]
        steady = np.ptp(moved, axis=1) < _TOLERANCE
        self._steady |= steady
        self.converged = bool(np.all(steady))
        self.settled = self.settled or self.converged
        # The rung above the rate counts, too.
        rungs = int(np.searchsorted(self._rates, rate_per_ns)) + 1
        self.ready = self.settled or bool(np.all(self._steady[:rungs]))
        self._at = self._values.tolist()
        self._after = self._expected().tolist()

    def carry(self, before: HeadValues) -> None:
        """Start from values that were found for a similar service."""
        columns = np.minimum(np.arange(self._size), before._size - 1)
        self._values = before._values[:, columns]
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

    def _shifted(self, later: _Floats, shift: tuple[float, float]) -> _Floats:
        """E h((x + tau - A)+) for a share of so many steps, whole ones and a part of one."""
        place, part = int(shift[0]), shift[1]
        low = later[:, place : place + self._size]
        moved: _Floats = low + part * (later[:, place + 1 : place + 1 + self._size] - low)
        return moved

    def _option(self, place: int, costs: _Floats) -> _Floats:
        """What an option is worth where its second run costs so much of the future."""
        chances = self._chances[place]
        prices, worth = self._curves[place]
        likely = chances > _UNLIKELY
        asked = costs[:, likely] / chances[likely]
        found: _Floats = np.zeros_like(costs)
        found[:, likely] = chances[likely] * np.interp(asked, prices, worth)
        return found

    def _expected(self) -> _Floats:
        expected: _Floats = np.matmul(self._values[:, None, :], self._mean)[:, 0, :]
        return expected


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
