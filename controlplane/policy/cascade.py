"""Cascades: what the confidence of a cheap first answer says about asking a better variant.

The evidence is measured per population: a calibration makes a variant's confidence the
chance that it is right, and a falling step function of that confidence says how much more
often another variant is right. All of it is plain numbers; nothing here decides.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from controlplane.policy.envelope import envelope, height
from controlplane.policy.records import Request

# A request has at most so many cascades to choose from: each costs every decision a little.
MOST_PAIRS = 3
# Logarithms of odds beyond this are certainties, and would overflow; so little is left of a whole
# that its logarithm is still a number.
_MOST_ODDS = 500.0
_LEAST = 1e-300
# A first answer that is kept leaves so long before it must, and this part of the time that the
# request had, but not more than so much, besides: timers count whole ms, and its way to the caller
# takes longer while every core computes.
_EARLY_NS = 2_000_000
_EARLY_PARTS = 20
_MOST_EARLY_NS = 10_000_000
# Choices of callers make sets of variants; what was found for this many of them is kept.
_REMEMBERED = 256


class Calibration(NamedTuple):
    """What makes a variant's confidence the chance that its answer is right.

    See `confidence_of`. `beta` are its numbers a, b and c, or none for 1, 1, 0.
    """

    temperature: float = 1.0
    beta: tuple[float, ...] = ()


class Escalation(NamedTuple):
    """What asking variant `to` after `first` gains, by the confidence of `first`.

    Step i holds for confidences from `confidences[i]` (rising, the first is 0) on: there
    `first` was right in `shares_right[i]` of `counts[i]` items and `to` in `gains[i]` more of
    them (falling, may be below 0).
    """

    first: str
    to: str
    confidences: tuple[float, ...]
    gains: tuple[float, ...]
    counts: tuple[int, ...]
    shares_right: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything that was measured on one population: calibrations by variant, escalations."""

    population: str
    calibrations: Mapping[str, Calibration]
    escalations: tuple[Escalation, ...]


def answered(logits: Sequence[float]) -> int:
    """The class of the largest logit; there is at least one."""
    place = 0
    for other in range(1, len(logits)):
        if logits[other] > logits[place]:
            place = other
    return place


def confidence_of(logits: Sequence[float], calibration: Calibration) -> float:
    """The chance, 0 to 1, that the class of the largest logit is right.

    With q the largest of `softmax(logits / temperature)`, the confidence is
    `1 / (1 + exp(-(a ln q - b ln(1 - q) + c)))`; without a, b and c it is q. 0 for logits that
    are not numbers.
    """
    if not logits:
        return 0.0
    place = answered(logits)
    largest, rest = logits[place], 0.0
    for other, logit in enumerate(logits):
        if other != place:
            rest += math.exp((logit - largest) / calibration.temperature)
    if not rest >= 0.0:
        # Also where it is no number.
        return 0.0
    if len(calibration.beta) != 3:
        return 1.0 / (1.0 + rest)
    a, b, c = calibration.beta
    whole = math.log1p(rest)
    unsure = b * (math.log(max(rest, _LEAST)) - whole) if b else 0.0
    odds = min(max(c - a * whole - unsure, -_MOST_ODDS), _MOST_ODDS)
    return 1.0 / (1.0 + math.exp(-odds))


def chance_of(logits: Sequence[float], calibration: Calibration, place: int) -> float:
    """The calibrated chance, 0 to 1, that one class is right: for the largest logit its confidence.

    The others share what that leaves as `softmax(logits / temperature)` has it.
    """
    confidence = confidence_of(logits, calibration)
    top = answered(logits)
    if place == top:
        return confidence
    largest = logits[top]
    powers = [math.exp((logit - largest) / calibration.temperature) for logit in logits]
    rest = math.fsum(powers) - 1.0
    return (1.0 - confidence) * powers[place] / rest if rest > 0.0 else 0.0


def early_ns(budget_ns: int) -> int:
    """How long before its answer must leave a request gets the first one, if that is all it has.

    `budget_ns` is the time that the request had when it arrived.
    """
    return _EARLY_NS + min(budget_ns // _EARLY_PARTS, _MOST_EARLY_NS)


def first_by_ns(request: Request) -> int:
    """When a request's first answer must leave, if that is all it has; a second is late then."""
    return request.deadline_ns - early_ns(request.budget_ns)


def faults(evidence: Evidence) -> list[str]:
    """Why evidence cannot be used, a line for each fault; empty when it can."""
    found = []
    for name, (temperature, beta) in evidence.calibrations.items():
        if not (temperature > 0.0 and math.isfinite(temperature)):
            found.append(f"{name}: temperature is {temperature}")
        if len(beta) not in (0, 3) or not all(map(math.isfinite, beta)):
            found.append(f"{name}: beta is {beta}")
    for each in evidence.escalations:
        sizes = {len(column) for column in each[2:]}
        if len(sizes) != 1 or sizes == {0}:
            found.append(f"{each.first} to {each.to}: the columns are not equally long")
            continue
        finite = all(map(math.isfinite, (*each.confidences, *each.gains, *each.shares_right)))
        rising = all(a < b for a, b in zip(each.confidences, each.confidences[1:], strict=False))
        falling = all(a >= b for a, b in zip(each.gains, each.gains[1:], strict=False))
        if not (finite and rising and falling and min(each.counts) > 0):
            found.append(f"{each.first} to {each.to}: the steps are not in order")
        if each.first not in evidence.calibrations:
            found.append(f"{each.first} to {each.to}: {each.first} has no calibration")
    return found


@dataclass(frozen=True, slots=True)
class Pair:
    """A first and a second variant, by number, and the worth of asking the second.

    `weights` are the shares of items in each step, `rights` and `gains` as in `Escalation`;
    `course` are the shares that are asked again and the accuracy then, as more and more of the
    least sure are.
    `options[i]` is what the option to escalate is worth at the price `prices[i]` (rising from
    0; linear between, nothing beyond): `F(t) = sum_i w_i max(0, g_i - t)`, and at most the mean
    gain, since a cascade is not believed to be better than its second variant.
    """

    first: int
    to: int
    starts: tuple[float, ...]
    gains: tuple[float, ...]
    rights: tuple[float, ...]
    weights: tuple[float, ...]
    prices: tuple[float, ...]
    options: tuple[float, ...]
    course: tuple[tuple[float, float], ...]

    @property
    def accuracy(self) -> float:
        """That of the first variant: the mean of `rights`."""
        return self.course[0][1]

    def step(self, confidence: float) -> int:
        """The step of a confidence."""
        return max(0, bisect_right(self.starts, confidence) - 1)

    def gain(self, confidence: float) -> float:
        """What asking the second variant gains on an answer of this confidence."""
        return self.gains[self.step(confidence)]

    def right(self, confidence: float) -> float:
        """Chance that a first answer of this confidence is right."""
        return self.rights[self.step(confidence)]

    def option(self, price: float) -> float:
        """What the option to escalate is worth when a second run costs `price`."""
        prices, options = self.prices, self.options
        if price <= 0.0:
            return options[0]
        if price >= prices[-1]:
            return 0.0
        place = bisect_right(prices, price)
        low = prices[place - 1]
        part = (price - low) / (prices[place] - low)
        return options[place - 1] + part * (options[place] - options[place - 1])

    def escalated(self, price: float) -> float:
        """Share of first answers whose gain is above the price."""
        return math.fsum(
            [w for w, gain in zip(self.weights, self.gains, strict=True) if gain > price]
        )

    def curve(self, first_ns: float, to_ns: float) -> list[tuple[float, float]]:
        """Mean cost (ns) and accuracy, as more and more of the least sure are escalated.

        The accuracy is at most that of the second variant, as in `options`.
        """
        return [(first_ns + share * to_ns, right) for share, right in self.course]


def pair_of(
    escalation: Escalation, first: int, to: int, qualities: Sequence[float] = ()
) -> Pair | None:
    """The evidence with variant numbers; None when the second variant gains nothing.

    `qualities` by variant number are those measured on the same population. They rest on other or
    more items than the steps do, so the steps are brought to agree with them on the mean.
    """
    total = sum(escalation.counts)
    weights = tuple([count / total for count in escalation.counts])
    gains, rights = escalation.gains, escalation.shares_right
    mean = math.fsum([w * gain for w, gain in zip(weights, gains, strict=True)])
    if mean > 0.0 and qualities:
        wanted = qualities[to] - qualities[first]
        gains = tuple([gain * wanted / mean for gain in gains])
        shift = qualities[first] - math.fsum([w * r for w, r in zip(weights, rights, strict=True)])
        rights = tuple([min(1.0, right + shift) for right in rights])
        mean = wanted
    if mean <= 0.0:
        return None
    prices = [0.0, *sorted({gain for gain in gains if gain > 0.0})]
    options = []
    for price in prices:
        worth = [w * max(0.0, g - price) for w, g in zip(weights, gains, strict=True)]
        options.append(min(math.fsum(worth), mean))
    return Pair(
        first=first,
        to=to,
        starts=escalation.confidences,
        gains=gains,
        rights=rights,
        weights=weights,
        prices=tuple(prices),
        options=tuple(options),
        course=_course(weights, rights, gains),
    )


def _course(
    weights: Sequence[float], rights: Sequence[float], gains: Sequence[float]
) -> tuple[tuple[float, float], ...]:
    """Shares asked again, the least sure first, and accuracy, at most the second variant's."""
    right = math.fsum([w * each for w, each in zip(weights, rights, strict=True)])
    most = right + math.fsum([w * gain for w, gain in zip(weights, gains, strict=True)])
    share, points = 0.0, [(0.0, right)]
    for weight, gain in zip(weights, gains, strict=True):
        share += weight
        right += weight * gain
        points.append((share, min(right, most)))
    return tuple(points)


@dataclass(frozen=True, slots=True, eq=False)
class Cascade:
    """The cascades that a request may take, on evidence of one population.

    `pairs` are those worth having, the best one first; `after` everything that may follow a
    first variant, the most accurate first; `calibrations` are by variant number.
    """

    population: str
    pairs: tuple[Pair, ...]
    after: Mapping[int, tuple[Pair, ...]]
    calibrations: Mapping[int, Calibration]


class Cascades:
    """The evidence of one variant table. What it says of a set of variants is found once."""

    __slots__ = ("_costs", "_evidence", "_numbers", "_qualities", "_remembered", "_resolution")

    def __init__(
        self,
        evidence: Mapping[str, Evidence],
        numbers: Mapping[str, int],
        costs_ns: Sequence[float],
        qualities: Sequence[float],
        resolution: float,
    ) -> None:
        """`costs_ns` and `qualities` are by variant number.

        `evidence` is by population; "" is the one of requests that name none.
        """
        self._evidence = evidence
        self._numbers = numbers
        self._costs = costs_ns
        self._qualities = qualities
        self._resolution = resolution
        self._remembered: dict[tuple[str, tuple[int, ...]], Cascade | None] = {}

    @property
    def populations(self) -> tuple[str, ...]:
        """The populations that there is evidence of."""
        return tuple(sorted({each.population for each in self._evidence.values()}))

    def of(self, population: str, eligible: tuple[int, ...]) -> Cascade | None:
        """What a request may take that these variants may answer; None when no cascade pays."""
        if len(eligible) < 2 or population not in self._evidence:
            return None
        key = (population, eligible)
        if key in self._remembered:
            return self._remembered[key]
        if len(self._remembered) >= _REMEMBERED:
            self._remembered.clear()
        found = self._remembered[key] = self._find(population, eligible)
        return found

    def _find(self, population: str, eligible: tuple[int, ...]) -> Cascade | None:
        evidence, numbers = self._evidence[population], self._numbers
        # Qualities are those on the population of requests that name none.
        usual = self._evidence.get("")
        same = usual is not None and usual.population == evidence.population
        qualities = self._qualities if same else ()
        all_pairs: list[Pair] = []
        for each in evidence.escalations:
            first, to = numbers.get(each.first, -1), numbers.get(each.to, -1)
            if first in eligible and to in eligible:
                pair = pair_of(each, first, to, qualities)
                if pair is not None:
                    all_pairs.append(pair)
        direct = [(self._costs[k], self._qualities[k]) for k in eligible]
        pairs = worthwhile(all_pairs, direct, self._costs, self._resolution)
        if not pairs:
            return None
        after: dict[int, tuple[Pair, ...]] = {}
        for pair in sorted(all_pairs, key=_second_number):
            after[pair.first] = (*after.get(pair.first, ()), pair)
        calibrations = {
            numbers[name]: calibration
            for name, calibration in evidence.calibrations.items()
            if name in numbers
        }
        return Cascade(evidence.population, pairs, after, calibrations)


def worthwhile(
    pairs: Sequence[Pair],
    direct: Sequence[tuple[float, float]],
    costs_ns: Sequence[float],
    resolution: float,
) -> tuple[Pair, ...]:
    """The pairs that add to what is there, at most `MOST_PAIRS`, the one that adds most first.

    A pair adds as much as its accuracy is, somewhere, above the best mix of the same mean cost
    of `direct` (cost and quality of single variants) and of the pairs before it; less than
    `resolution` is nothing.
    """
    curves = [pair.curve(costs_ns[pair.first], costs_ns[pair.to]) for pair in pairs]
    points = list(direct)
    chosen: list[Pair] = []
    left = list(range(len(pairs)))
    while left and len(chosen) < MOST_PAIRS:
        hull = envelope(points)
        best, most = -1, resolution
        for place in left:
            ahead = max([right - height(hull, cost) for cost, right in curves[place]])
            if ahead > most:
                best, most = place, ahead
        if best < 0:
            break
        chosen.append(pairs[best])
        points += curves[best]
        left.remove(best)
    return tuple(chosen)


def _second_number(pair: Pair) -> int:
    return pair.to
