"""Prices of cohorts: what requests of one kind take over what is predicted for them. Pure.

Tokens do not tell all that a request costs. Requests of one tenant, class and size that always
take longer than predicted are predicted to take longer, so that they stand in the way of nobody
who pays for what he takes. All times in ns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

from controlplane.policy.records import Request

# By tenant, class, and bits of the number of tokens; the model is the pool's.
Cohort: TypeAlias = tuple[str, str, int]

# So many are told apart: callers choose tenants' names as they like.
MOST_COHORTS: Final = 64
# A run moves its cohort's factor by this much of its error.
GAIN: Final = 0.08
# One run frozen by the host says at most that twice as long is right, one cut short half.
_MOST_ERROR: Final = 1.0
_LEAST_ERROR: Final = -0.5
_LARGEST: Final = 4.0
# What a cohort's runs may say by chance: it has no price of its own before so many, nor below so
# much more than those that it is compared with.
FEWEST_RUNS: Final = 8
RAISED_FROM: Final = 1.15
# Prices are set anew after so many runs.
_EVERY: Final = 8
# Cohorts are compared with the one below which this share of the runs is.
_REFERENCE: Final = 0.1
# Whoever ran in this time counts among those that the others are compared with.
_RECENT_NS: Final = 10_000_000_000
# What was learnt is worth half after so long without a run.
_HALF_LIFE_NS: Final = 60_000_000_000


class CohortPrice(NamedTuple):
    """A cohort whose requests are predicted to take `price` times what their size says.

    `tokens` is the least number of its size class, which ends below twice that; `runs` are those
    that its price rests on.
    """

    tenant: str
    klass: str
    tokens: int
    price: float
    runs: int


class _Kept:
    """`factor` is measured over predicted without prices, as a fading mean.

    `weight` counts its runs of late, `price` is what it was when all were compared last.
    """

    __slots__ = ("factor", "price", "runs", "seen_ns", "weight")

    def __init__(self, now_ns: int) -> None:
        self.factor = 1.0
        self.price = 1.0
        self.runs = 0
        self.seen_ns = now_ns
        self.weight = 0.0

    def move(self, error: float) -> None:
        """A run says that the factor is wrong by so much."""
        self.factor = min(max(self.factor + GAIN * error, 1.0 / _LARGEST), _LARGEST)
        self.runs += 1

    def see(self, now_ns: int) -> None:
        """It runs now: what is known of it from before is worth what it still is."""
        idle = now_ns - self.seen_ns
        self.factor, self.price = _faded(self.factor, idle), _faded(self.price, idle)
        self.weight = 1.0 + self.weight * max(0.0, 1.0 - idle / _RECENT_NS)
        self.seen_ns = now_ns


def _faded(value: float, idle_ns: int) -> float:
    """What a factor or price is worth after so long without a run."""
    if idle_ns <= _RECENT_NS:
        return value
    # `**` of floats may be complex as far as types tell.
    kept: float = 0.5 ** (idle_ns / _HALF_LIFE_NS)
    return 1.0 + (value - 1.0) * kept


def _bounded(error: float) -> float:
    return min(max(error, _LEAST_ERROR), _MOST_ERROR)


def cohort_of(request: Request) -> Cohort:
    """The cohort of a request; inputs without tokens are one size."""
    tokens = 0
    for shape in request.shapes.values():
        tokens = shape.tokens
        break
    return (request.klass.tenant, request.klass.name, tokens.bit_length())


class Cohorts:
    """The cohorts of one pool, or of one model that generates.

    `raised` says whether any has a price above 1.

    A run of a cohort moves its factor: `f += 0.08 (r - f)`, r = measured over predicted without
    prices. What befalls all cohorts alike is no cohort's: prices are `f / f0`, where a tenth of
    the recent runs are of cohorts with a factor of f0 or less, and the variants' corrections
    (`corrections.py`) follow the rest.
    """

    __slots__ = ("_kept", "_uncompared", "raised")

    def __init__(self) -> None:
        self._kept: dict[Cohort, _Kept] = {}
        self._uncompared = 0
        self.raised = False

    def __len__(self) -> int:
        return len(self._kept)

    def price(self, request: Request, now_ns: int) -> float:
        """What the predictions for a request are multiplied by, at least 1."""
        return self._price(self._kept.get(cohort_of(request)), now_ns)

    def price_of(self, cohort: Cohort, now_ns: int) -> float:
        """The same for whatever is predicted otherwise than requests are."""
        return self._price(self._kept.get(cohort), now_ns)

    def observe(self, cohort: Cohort, base: float, measured: float, now_ns: int) -> None:
        """Something of one cohort took `measured`, in whatever unit `base` was predicted in.

        That is without its price.
        """
        kept = self._find(cohort, now_ns)
        expected = kept.factor * base
        if expected > 0.0:
            kept.move(kept.factor * _bounded(measured / expected - 1.0))
            self._learnt(now_ns)

    def repriced(self, requests: Sequence[Request], parts: Sequence[int], now_ns: int) -> float:
        """What a run's prediction would be at the present prices, over what it was.

        `parts` divide that prediction among its requests.
        """
        if not self.raised and all(request.price == 1.0 for request in requests):
            return 1.0
        before, after = 0.0, 0.0
        for request, part in zip(requests, parts, strict=True):
            before += part
            after += part * self.price(request, now_ns) / request.price
        return after / before if before > 0.0 else 1.0

    def learn(
        self, requests: Sequence[Request], parts: Sequence[int], measured_ns: int, now_ns: int
    ) -> None:
        """A run took `measured_ns`; `parts` divide its prediction among its requests.

        One that several cohorts shared moves each by its weight in it (normalised least mean
        squares): `f_c += 0.08 e b_c / sum of b²`, b being predictions without prices and e what
        the run took beyond `sum of b f`.
        """
        if len(requests) == 1:
            base = parts[0] / requests[0].price
            self.observe(cohort_of(requests[0]), base, measured_ns, now_ns)
            return
        bases: dict[Cohort, float] = {}
        for request, part in zip(requests, parts, strict=True):
            cohort = cohort_of(request)
            bases[cohort] = bases.get(cohort, 0.0) + part / request.price
        # Of two new ones the second may take the place of the first, so they are held here.
        members: list[tuple[_Kept, float]] = []
        expected = squares = 0.0
        for cohort, base in bases.items():
            kept = self._find(cohort, now_ns)
            members.append((kept, base))
            expected += base * kept.factor
            squares += base * base
        if squares <= 0.0:
            return
        error = _bounded(measured_ns / expected - 1.0) * expected
        for kept, base in members:
            kept.move(error * base / squares)
        self._learnt(now_ns)

    def prices(self, now_ns: int) -> list[CohortPrice]:
        """The cohorts whose price is above 1, the dearest first."""
        found = []
        for cohort, kept in self._kept.items():
            price = self._price(kept, now_ns)
            if price > 1.0:
                tenant, klass, bits = cohort
                found.append(CohortPrice(tenant, klass, 1 << bits >> 1, price, kept.runs))
        found.sort(key=lambda each: -each.price)
        return found

    def _price(self, kept: _Kept | None, now_ns: int) -> float:
        if kept is None or kept.price == 1.0:
            return 1.0
        price = _faded(kept.price, now_ns - kept.seen_ns)
        return price if price >= RAISED_FROM else 1.0

    def _find(self, cohort: Cohort, now_ns: int) -> _Kept:
        """What is kept of a cohort that ran now; a new one takes the least worthy one's place."""
        kept = self._kept.get(cohort)
        if kept is None:
            if len(self._kept) >= MOST_COHORTS:
                del self._kept[self._least_worthy(now_ns)]
            kept = self._kept[cohort] = _Kept(now_ns)
        kept.see(now_ns)
        return kept

    def _least_worthy(self, now_ns: int) -> Cohort:
        """The one with the fewest runs, of these the one that is longest ago; idle ones count less.

        A flood of names cannot take the place of those who are here.
        """
        worst: Cohort | None = None
        least = (0.0, 0)
        for cohort, kept in self._kept.items():
            worth = kept.runs / (1.0 + (now_ns - kept.seen_ns) / _HALF_LIFE_NS)
            if worst is None or (worth, kept.seen_ns) < least:
                worst, least = cohort, (worth, kept.seen_ns)
        assert worst is not None
        return worst

    def _learnt(self, now_ns: int) -> None:
        """One more run is known; the prices follow every few of them."""
        self._uncompared += 1
        if self._uncompared >= _EVERY:
            self._uncompared = 0
            self._compare(now_ns)

    def _compare(self, now_ns: int) -> None:
        """Set every price anew, all at one moment: factors that rise together raise none."""
        known = [kept for kept in self._kept.values() if kept.runs >= FEWEST_RUNS]
        recent = [
            (kept.factor, kept.weight) for kept in known if now_ns - kept.seen_ns <= _RECENT_NS
        ]
        if not recent:
            return
        recent.sort()
        left = _REFERENCE * sum([weight for _, weight in recent])
        reference = 1.0
        for factor, weight in recent:
            reference = factor
            left -= weight
            if left <= 0.0:
                break
        self.raised = False
        for kept in known:
            price = min(kept.factor / reference, _LARGEST)
            kept.price = price if price >= RAISED_FROM else 1.0
            self.raised = self.raised or kept.price > 1.0
