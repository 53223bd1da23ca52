"""The price rule: a variant must be worth what its time keeps from those who come after."""

from __future__ import annotations

import math
from collections.abc import Sequence

from controlplane.policy.admission import Admission
from controlplane.policy.arrival import Arrival
from controlplane.policy.cascade import Cascade
from controlplane.policy.head_value import HeadValues, Option
from controlplane.policy.orchid import Orchid
from controlplane.policy.profiles import VariantTable
from controlplane.policy.records import Decision
from controlplane.policy.selector import Estimate, Reason, Situation, drop, has_chance, run
from controlplane.policy.traffic import Traffic

# Of two variants that are worth the same within this, the more accurate one runs.
_INDIFFERENCE = 0.002
# An answer in time of the most accurate variant counts for so much more than it is right, while
# that variant, for everybody, takes less than the first share of the workers, and no more from
# the second on.
_PREFERENCE = 0.1
_ROOM = 0.7
_NO_ROOM = 0.8
# The future is valued as if deadlines were this share: the door refuses with a margin.
_PRUDENCE = 0.85
# A head that its fastest variant is so likely to answer in time is never dropped.
_SURE = 0.9
# The values are kept up to date in small steps, so often; the first ones take more rounds.
_EVERY_NS = 50_000_000
_ROUNDS = 4
_FIRST_ROUNDS = 24
# They are used once they hold for so many times the present arrivals.
_CROWD = 2.0
# Rewards are set anew every so many steps; services that moved by this share need a new grid.
_REWARD_STEPS = 5
_DRIFT = 0.05


class Price:
    """Runs the variant with the highest `q_k P_k(on time) + value of what is left behind`.

    The value is that of the next head's age after the run (`HeadValues`), at a rate that
    counts who waits and who is expected: `(n + lambda D) / (age + D)`, from the next head's
    arrival until a deadline from now. A head is only dropped when its fastest variant is
    unlikely to be on time and somebody waits. Until the values have converged the fallback
    decides. While workers have room for the most accurate variant, its answers count for more.
    """

    __slots__ = ("_fallback", "_means", "_next_ns", "_preference", "_reward_steps", "_solved",
                 "_table", "_traffic", "_trip_ns", "_values", "_workers")  # fmt: skip

    name = "price"
    by_deadline = True
    second_look = True

    def __init__(self, fallback: Orchid) -> None:
        self._fallback = fallback
        self._table: VariantTable | None = None
        self._traffic = Traffic()
        self._trip_ns = 0.0
        self._workers = 0
        # What an answer in time of the most accurate variant counts for beside being right.
        self._preference = 0.0
        self._values: HeadValues | None = None
        # What the values were found for: variants, cascades, workers, mean deadline and services.
        self._solved: tuple[tuple[int, ...], Cascade | None, int] | None = None
        self._means: list[float] = []
        self._next_ns = 0
        self._reward_steps = 0

    def of_pool(self) -> Price:
        """A policy with traffic and values of its own."""
        return Price(self._fallback)

    def admit(self, arrival: Arrival) -> Admission:
        """Refuse what would be late even on its fastest eligible variant."""
        if arrival.table is not self._table:
            # Variant numbers have another meaning now.
            self._table, self._traffic = arrival.table, Traffic()
            self._values = self._solved = None
        self._traffic.arrive(arrival)
        self._trip_ns, self._workers = arrival.trip_ns, arrival.load.workers
        return self._fallback.admit(arrival)

    def refresh(self, now_ns: int) -> None:
        """A few more rounds towards the values of the present traffic, if it is time."""
        if now_ns < self._next_ns or not self._workers or self._traffic.deadline_ns <= 0.0:
            return
        self._next_ns = now_ns + _EVERY_NS
        traffic = self._traffic
        self._preference = preference(traffic.best_load() / self._workers, _ROOM, _NO_ROOM)
        means = [traffic.deadline_ns, *(traffic.services_ns[k] for k in traffic.eligible)]
        kind = (traffic.eligible, traffic.cascade, self._workers)
        values = self._values
        if values is None or kind != self._solved or not _similar(self._means, means):
            shares = [service / self._workers for service in means[1:]]
            fresh = HeadValues(traffic.deadline_ns, shares, self._options(shares))
            if values is not None:
                fresh.carry(values)
            self._values = values = fresh
            self._solved, self._means = kind, means
            self._reward_steps = 0
        if self._reward_steps == 0:
            self._reward_steps = _REWARD_STEPS
            ages = values.ages_ns()
            values.earn(self._rewards(ages), self._second_chances(ages))
        self._reward_steps -= 1
        if not values.converged:
            rounds = _ROUNDS if values.settled else _FIRST_ROUNDS
            # Cascades spend what is free at other rates, too, and wait for them all.
            known = traffic.known(now_ns) and traffic.cascade is None
            values.improve(rounds, _CROWD * traffic.rate_per_ns() if known else math.inf)

    def decide(self, estimates: Sequence[Estimate], situation: Situation) -> Decision:
        """The variant for the head of the queue, or a drop."""
        values = self._values
        if values is None or not values.ready or situation.slack_ns <= 0:
            return self._fallback.decide(estimates, situation)
        slack, ahead = situation.slack_ns, situation.trip_ns + situation.start_ns
        workers = max(1, situation.workers)
        predicted = [estimate.predicted_ns for estimate in estimates]
        future = self._future(values, situation, [*[p / workers for p in predicted], 0.0])
        chances: list[float] = []
        worth: list[float] = []
        # One plain loop: this is most of what a decision costs.
        for place, estimate in enumerate(estimates):
            service = predicted[place]
            chance = estimate.punctuality.share_within(slack / (ahead + service))
            value = estimate.quality * chance + future[place]
            chances.append(chance)
            worth.append(value)
        worth[0] += self._preference * chances[0]
        return choice(estimates, situation, chances, worth, future[-1])

    def price_per_s(self) -> float:
        """Accurate answers that the next second of a worker is worth, as of the last arrival.

        `(h(0) - h(tau)) / tau` behind an empty queue, for the service tau of the fastest variant.
        """
        values, traffic, workers = self._values, self._traffic, self._workers
        services = [traffic.services_ns[number] for number in traffic.eligible]
        if values is None or not values.ready or not workers or not services:
            return 0.0
        service = min(services)
        now, later = values.after(traffic.rate_per_ns(), [0.0, service / workers])
        return (now - later) / service * 1e9

    def _future(
        self, values: HeadValues, situation: Situation, shares_ns: Sequence[float]
    ) -> list[float]:
        """What is left behind after each of these shares of the pooled worker."""
        deadline, waiting = self._traffic.deadline_ns, situation.waiting
        rate = self._traffic.rate_per_ns()
        if not waiting:
            return values.after(rate, shares_ns)
        # Those who wait came evenly between the head and now, as far as is known here.
        age = max(0.0, deadline - situation.slack_ns) * waiting / (waiting + 1)
        crowd = (waiting + rate * deadline) / (age + deadline)
        return values.at(crowd, [age + share for share in shares_ns])

    def _options(self, shares_ns: Sequence[float]) -> list[Option]:
        """The cascades of the usual request, given what its variants take of the pooled worker."""
        cascade, eligible = self._traffic.cascade, self._traffic.eligible
        if cascade is None:
            return []
        options = []
        for pair in cascade.pairs:
            first = eligible.index(pair.first)
            both_ns = shares_ns[first] + shares_ns[eligible.index(pair.to)]
            options.append(Option(first, both_ns, pair.prices, pair.options))
        return options

    def _second_chances(self, ages_ns: Sequence[float]) -> list[list[float]]:
        """The chances of each option that both its runs are on time."""
        traffic = self._traffic
        if traffic.cascade is None:
            return []
        rows = []
        for pair in traffic.cascade.pairs:
            second = traffic.estimates[pair.to]._replace(predicted_ns=traffic.services_ns[pair.to])
            left = _PRUDENCE * traffic.deadline_ns - self._trip_ns - traffic.services_ns[pair.first]
            rows.append([second.chance(left - age, self._trip_ns) for age in ages_ns])
        return rows

    def _rewards(self, ages_ns: Sequence[float]) -> list[list[float]]:
        traffic = self._traffic
        rows = []
        for number in traffic.eligible:
            estimate = traffic.estimates[number]._replace(predicted_ns=traffic.services_ns[number])
            slacks = (_PRUDENCE * traffic.deadline_ns - age for age in ages_ns)
            rows.append([estimate.quality * estimate.chance(s, self._trip_ns) for s in slacks])
        return rows


def _similar(one: Sequence[float], other: Sequence[float]) -> bool:
    """Whether no mean differs by more than a twentieth."""
    pairs = zip(one, other, strict=True)
    return all(abs(mean - before) <= _DRIFT * before for before, mean in pairs)


def preference(load: float, room: float, no_room: float) -> float:
    """What an answer in time of the most accurate variant counts for beside being right, when that
    variant, for everybody, would take the share `load` of the workers.

    All of it up to `room`, nothing from `no_room` on.
    """
    return _PREFERENCE * min(max((no_room - load) / (no_room - room), 0.0), 1.0)


def choice(
    estimates: Sequence[Estimate],
    situation: Situation,
    chances: Sequence[float],
    worth: Sequence[float],
    without: float,
) -> Decision:
    """The first of the estimates that is worth about the most, or a drop, which is worth `without`.

    `chances` to be on time and `worth` are those of the estimates.
    """
    fastest, least = 0, math.inf
    for place, estimate in enumerate(estimates):
        if estimate.predicted_ns < least:
            fastest, least = place, estimate.predicted_ns
    best = max(worth)
    if chances[fastest] < _SURE:
        if situation.waiting:
            if best <= without:
                return drop(Reason.SHED_UNLIKELY, estimates[fastest], situation)
        elif not has_chance(situation, estimates[fastest].sigma):
            return drop(Reason.SHED_UNLIKELY, estimates[fastest], situation)
        else:
            hope = chances[fastest]
            return run(Reason.LAST_CHANCE, estimates[fastest], estimates, situation, hope)
    chosen = 0
    while worth[chosen] < best - _INDIFFERENCE:
        chosen += 1
    reason = _why(chosen, fastest, estimates, chances)
    return run(reason, estimates[chosen], estimates, situation, chances[chosen])


def _why(chosen: int, fastest: int, estimates: Sequence[Estimate], chances: Sequence[float]) -> str:
    """The reason word: what stood against the most accurate variant, slack or price."""
    if len(estimates) == 1:
        return Reason.ONLY_ELIGIBLE
    if chosen == 0:
        return Reason.MOST_ACCURATE
    by_slack = estimates[0].quality * chances[0] < estimates[chosen].quality * chances[chosen]
    if chosen == fastest:
        return Reason.FASTEST_FOR_SLACK if by_slack else Reason.FASTEST_UNDER_LOAD
    return Reason.LIMITED_BY_SLACK if by_slack else Reason.LIMITED_BY_PRICE
