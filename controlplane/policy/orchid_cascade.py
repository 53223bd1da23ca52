"""The price rule with cascades: one price governs the first answer and the second."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from controlplane.policy.cascade import early_ns
from controlplane.policy.envelope import envelope, price_at
from controlplane.policy.head_value import HeadValues
from controlplane.policy.orchid import Orchid
from controlplane.policy.price import Price, choice, preference
from controlplane.policy.records import Decision, DecisionKind
from controlplane.policy.selector import Estimate, Reason, Situation, Stage, drop, run

# The most accurate variant is preferred to a cascade as long as it would take, for everybody, less
# than the first share of the workers, and no more from the second on.
_ROOM = 0.5
_NO_ROOM = 0.7
# A second run that is less likely to be on time than this is not worth a price.
_UNLIKELY = 1e-3
# Gains below this are below what the evidence can tell: the first answer is as good.
MEASURABLE = 0.002
# The price of scarcity is the mean of those at which all that is wanted takes these shares of the
# workers' time: within a deadline more or fewer may come than in the mean. It follows its traffic
# by this share at each refresh.
_BUSY = tuple(share / 10.0 for share in range(7, 14))
_GAIN = 0.2
# Of first variants that are worth the same within this the quickest runs: it leaves most time for
# all that follows.
_ALIKE = 0.006
# A second answer that is less likely than this is prevented by time, not by its price.
_LIKELY = 0.5
# A fixed threshold asks again below this confidence, when the answer is likely to be on time.
_THRESHOLD = 0.9
_SURE = 0.9


class OrchidCascade(Price):
    """As `Price`, but a first answer may be followed by that of a better variant.

    A worker's time has one price, what others would gain by it. A first variant j with evidence is
    worth what it is worth alone, and the best option to escalate on top: `P_jk F_jk(x / P_jk)` for
    the price x of the second run. When the answer is there and its confidence c known, a second
    run k is wanted if `g_jk(c) P_k(slack)` is more than that price as it is then, and made, when
    nobody waits for a first answer, if it still is. A first run delays those who come after it
    besides (see `HeadValues`); a second run begins when nobody is there to be delayed.
    """

    __slots__ = ("_favour", "_scarcity")

    name = "orchid-cascade"

    def __init__(self, fallback: Orchid) -> None:
        super().__init__(fallback)
        # Quality that a ns of a worker is worth because no more of them are there.
        self._scarcity = 0.0
        # What an answer in time of the most accurate variant counts for beside a cascade's.
        self._favour = 0.0

    def of_pool(self) -> OrchidCascade:
        """A policy with traffic and values of its own."""
        return OrchidCascade(self._fallback)

    def refresh(self, now_ns: int) -> None:
        """As `Price.refresh`, and the price of workers that are too few."""
        due = now_ns >= self._next_ns
        super().refresh(now_ns)
        if due and self._workers:
            self._scarcity += _GAIN * (self._weigh() - self._scarcity)

    def price_per_s(self) -> float:
        """Accurate answers that the next second of a worker is worth, as of the last arrival.

        What a first run is charged of both: the delay to others and the price of its time.
        """
        return super().price_per_s() + self._scarcity * 1e9

    def decide(self, estimates: Sequence[Estimate], situation: Situation) -> Decision:
        """The variant for the head of the queue, or a drop."""
        if situation.stage is not None:
            return self._again(situation.stage, estimates, situation)
        values, cascade = self._values, situation.cascade
        ready = values is not None and values.ready and situation.slack_ns > 0
        if cascade is None or values is None or not ready:
            return super().decide(estimates, situation)
        slack, trip = situation.slack_ns, situation.trip_ns
        ahead = trip + situation.start_ns
        taken = [estimate.predicted_ns for estimate in estimates]
        places = {estimate.variant: place for place, estimate in enumerate(estimates)}
        costs = self._costs(values, situation, taken)
        # A second run comes after whoever waits for a first answer, and ends before that is given.
        wait = (situation.busy_ns + situation.queued_ns) / max(1, situation.workers)
        wait += early_ns(situation.deadline_ns)
        price = self._scarcity
        chances: list[float] = []
        worth: list[float] = []
        for place, estimate in enumerate(estimates):
            service = taken[place]
            chance = estimate.punctuality.share_within(slack / (ahead + service))
            more = 0.0
            for pair in cascade.after.get(estimate.variant, ()):
                to = places.get(pair.to, -1)
                # At no price is an option worth more than at none.
                if to < 0 or pair.options[0] <= more:
                    continue
                second = taken[to]
                left = slack - ahead - service - wait
                likely = estimates[to].punctuality.share_within(left / (trip + second))
                if likely > _UNLIKELY:
                    more = max(more, likely * pair.option(price * second / likely))
            chances.append(chance)
            worth.append(estimate.quality * chance + more - costs[place])
        worth[0] += self._favour * chances[0]
        decision = choice(estimates, situation, chances, worth, 0.0)
        if decision.kind is not DecisionKind.RUN or decision.reason == Reason.LAST_CHANCE:
            return decision
        chosen, least = places[decision.variant], max(worth) - _ALIKE
        for place, estimate in enumerate(estimates):
            begins = estimate.variant in cascade.after and worth[place] >= least
            if begins and taken[place] < taken[chosen]:
                chosen = place
        if estimates[chosen].variant in cascade.after:
            return run(Reason.CASCADE, estimates[chosen], estimates, situation, chances[chosen])
        return decision

    def _costs(
        self, values: HeadValues, situation: Situation, taken_ns: Sequence[float]
    ) -> list[float]:
        """What a worker's time is worth to others: its price, and what waiting costs those who wait
        and come.
        """
        workers, price = max(1, situation.workers), self._scarcity
        future = self._future(values, situation, [0.0, *[taken / workers for taken in taken_ns]])
        idle = future[0]
        return [
            idle - after + price * taken for after, taken in zip(future[1:], taken_ns, strict=True)
        ]

    def _weigh(self) -> float:
        """The price at which all that comes takes what the workers can do.

        The slope of the envelope of mean cost and quality over single variants and cascades, about
        the cost that the arrival rate leaves to each request. Notes besides how far that leaves
        room for the most accurate variant alone.
        """
        traffic = self._traffic
        rate, services = traffic.rate_per_ns(), traffic.services_ns
        self._favour = preference(traffic.best_load() / self._workers, _ROOM, _NO_ROOM)
        if traffic.cascade is None or rate <= 0.0:
            return 0.0
        points = [(services[k], traffic.estimates[k].quality) for k in traffic.eligible]
        for pairs in traffic.cascade.after.values():
            for pair in pairs:
                points += pair.curve(services[pair.first], services[pair.to])
        outer, left = envelope(points), self._workers / rate
        return math.fsum([price_at(outer, share * left) for share in _BUSY]) / len(_BUSY)

    def reconsider(
        self,
        confidence: float,
        gains: Mapping[int, float],
        estimates: Sequence[Estimate],
        situation: Situation,
    ) -> str:
        """Whether a first answer is the last: why, or "" when asking again is worth it.

        `gains`, all above `MEASURABLE`, and `estimates` are those of the variants that may be
        asked; the request is in no queue.
        """
        if self._worthwhile(gains, estimates, situation) >= 0:
            return ""
        ahead = situation.trip_ns + situation.start_ns
        slack = situation.slack_ns
        likely = max([estimate.chance(slack, ahead) for estimate in estimates]) >= _LIKELY
        return Reason.BY_PRICE if likely else Reason.BY_SLACK

    def _again(self, stage: Stage, estimates: Sequence[Estimate], situation: Situation) -> Decision:
        """For a request that has an answer: a variant that is worth asking too, or none."""
        if situation.slack_ns <= 0:
            return drop(Reason.EXPIRED, estimates[-1], situation)
        if stage.shadow:
            if situation.waiting:
                return drop(Reason.SHADOW, estimates[-1], situation)
            return run(Reason.SHADOW, estimates[0], estimates, situation)
        place = self._worthwhile(stage.gains, estimates, situation)
        if place < 0:
            return drop(Reason.BY_PRICE, estimates[-1], situation)
        return run(Reason.ESCALATED, estimates[place], estimates, situation)

    def _worthwhile(
        self, gains: Mapping[int, float], estimates: Sequence[Estimate], situation: Situation
    ) -> int:
        """Place of the estimate that is most worth its price, -1 when none is worth it."""
        values = self._values
        if values is None or not values.ready or situation.slack_ns <= 0:
            return -1
        ahead = situation.trip_ns + situation.start_ns
        taken = [estimate.predicted_ns for estimate in estimates]
        if situation.waiting:
            costs = self._costs(values, situation, taken)
        else:
            costs = [self._scarcity * each for each in taken]
        best, chosen = 0.0, -1
        for place, estimate in enumerate(estimates):
            chance = estimate.chance(situation.slack_ns, ahead)
            worth = gains.get(estimate.variant, 0.0) * chance - costs[place]
            if worth > best:
                best, chosen = worth, place
        return chosen


class FixedCascade(OrchidCascade):
    """For comparison: one cascade for everybody, escalated below a fixed confidence.

    The first variant always comes first; the second is asked below the threshold whatever
    else waits, when it is likely to be on time.
    """

    __slots__ = ("_threshold",)

    name = "cascade-fixed"

    def __init__(self, fallback: Orchid, threshold: float = _THRESHOLD) -> None:
        super().__init__(fallback)
        self._threshold = threshold

    def of_pool(self) -> FixedCascade:
        """A policy with traffic of its own."""
        return FixedCascade(self._fallback, self._threshold)

    def decide(self, estimates: Sequence[Estimate], situation: Situation) -> Decision:
        """The first variant of the best cascade, or what the reserve says without one."""
        if situation.stage is not None:
            return self._again(situation.stage, estimates, situation)
        if situation.cascade is not None and situation.slack_ns > 0:
            first = situation.cascade.pairs[0].first
            for estimate in estimates:
                if estimate.variant == first:
                    alone = self._fallback.decide((estimate,), situation)
                    return alone._replace(approximation=estimate is not estimates[0])
        return self._fallback.decide(estimates, situation)

    def reconsider(
        self,
        confidence: float,
        gains: Mapping[int, float],
        estimates: Sequence[Estimate],
        situation: Situation,
    ) -> str:
        """As `OrchidCascade.reconsider`, by the threshold."""
        if confidence >= self._threshold:
            return Reason.CONFIDENT
        return "" if self._worthwhile(gains, estimates, situation) >= 0 else Reason.BY_SLACK

    def _worthwhile(
        self, gains: Mapping[int, float], estimates: Sequence[Estimate], situation: Situation
    ) -> int:
        """Place of the first estimate that is sure to be on time; -1 for none."""
        ahead = situation.trip_ns + situation.start_ns
        for place, estimate in enumerate(estimates):
            sure = estimate.chance(situation.slack_ns, ahead) >= _SURE
            if sure and estimate.variant in gains:
                return place
        return -1
