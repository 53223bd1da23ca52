"""How many workers a traffic needs, how busy they are, and which variants will answer it.

A birth-death chain over the number of requests in the system, as behind Erlang's formulas,
whose services are what the live rule (`selector.late_binding`) would choose in each state.
Above c requests its ratios get the exponent 1/V, V = (scv_a + scv_s) / 2, which gives the tail
`exp(-(c mu - lambda) t / V)` that belongs to Allen and Cunneen's mean wait (see `queueing`).
Arrivals that the door would refuse do not enter, so the chain is fed with the admitted rate.
Sharing of runs is left out: where it pays, fewer workers do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from controlplane.policy.margins import completion_ns
from controlplane.policy.profiles import VariantTable
from controlplane.policy.queueing import Demand, workers_for
from controlplane.policy.records import DecisionKind, Shape
from controlplane.policy.selector import Estimate, Situation, late_binding, reserve_share

_MOST_WORKERS = 10_000
# States above c beyond which nobody waits whatever the deadline.
_MOST_WAITING = 100_000
_ROUNDS = 6
# A state this improbable ends the chain.
_NEGLIGIBLE = 1e-12


@dataclass(frozen=True, slots=True)
class Traffic:
    """What is asked for: requests a second, their time, and their lengths in tokens.

    Each of `lengths` is as likely. `arrival_scv` is the squared coefficient of variation of the
    times between arrivals: 1 for Poisson, more for bursts. `trip_ns` is the way to a worker and
    back.
    """

    rate_per_s: float
    deadline_ns: int
    lengths: tuple[int, ...]
    arrival_scv: float = 1.0
    trip_ns: float = 1_200_000.0

    def __post_init__(self) -> None:
        if not (self.rate_per_s > 0.0 and math.isfinite(self.rate_per_s)):
            raise ValueError(f"the rate must be above 0, got {self.rate_per_s}")
        if self.deadline_ns <= 0 or not self.lengths or min(self.lengths) < 1:
            raise ValueError("a traffic needs a deadline and lengths, all above 0")
        if self.arrival_scv <= 0.0:
            raise ValueError(f"the burst must be above 0, got {self.arrival_scv}")


@dataclass(frozen=True, slots=True)
class Rule:
    """The live policy's settings."""

    confidence_z: float = 1.645
    reserve: float = 0.35


@dataclass(frozen=True, slots=True)
class Outlook:
    """What so many workers give; all shares are of the requests offered, but `mix`.

    `mix` is each variant's share of the on-time answers, `quality` their mean, `waiting` the
    share that finds no free worker.
    """

    workers: int
    on_time: float
    refused: float
    late: float
    waiting: float
    utilisation: float
    quality: float
    mix: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class _State:
    """What happens to a head that is dispatched in one state: means over the lengths."""

    service_ns: float
    square_ns2: float
    on_time: tuple[float, ...]  # by variant number
    late: float


def plan(
    table: VariantTable,
    eligible: Sequence[int],
    traffic: Traffic,
    percentile: float,
    quality: float = 0.0,
    rule: Rule | None = None,
) -> tuple[Outlook, ...]:
    """Outlooks of one worker fewer than needed (if any), of the fewest, and of some more.

    The fewest workers answer the share `percentile` (0 to 1) of the offered requests on time, with
    a mean quality of at least `quality`; the second outlook is theirs, or the first for one
    worker. Raises ValueError when no number of workers can.
    """
    if not 0.0 < percentile < 1.0:
        raise ValueError(f"percentile must be between 0 and 1, got {percentile}")
    best = max(table.candidates[k].quality for k in eligible)
    if quality > best:
        raise ValueError(f"a mean quality of {quality} is more than the best variant's {best:.4f}")
    rule = rule or Rule()
    work = _Work(table, eligible, traffic, rule)
    _check_reachable(work, percentile, quality)
    least = _least(work, traffic, percentile)
    if least > _MOST_WORKERS:
        raise ValueError(
            f"{traffic.rate_per_s:g}/s takes {least:.0f} workers or more; this plans for at most "
            f"{_MOST_WORKERS}"
        )
    workers = max(1, math.ceil(least) - 1)
    found: dict[int, Outlook] = {}

    def enough(count: int) -> bool:
        if count not in found:
            found[count] = outlook(table, eligible, traffic, count, rule)
        return found[count].on_time >= percentile and found[count].quality >= quality

    step = 1
    while not enough(workers):
        if workers + step > _MOST_WORKERS:
            worst = found[workers]
            raise ValueError(
                f"even {workers} workers answer {worst.on_time:.4f} on time at a quality of "
                f"{worst.quality:.4f}: give a longer deadline or ask for less"
            )
        low, workers = workers, workers + step
        step *= 2
        if enough(workers):
            while workers - low > 1:
                middle = (low + workers) // 2
                low, workers = (low, middle) if enough(middle) else (middle, workers)
    while workers > 1 and enough(workers - 1):
        workers -= 1
    more = sorted({workers + 1, workers + 2, math.ceil(workers * 1.5)})
    shown = [count for count in (workers - 1, workers, *more) if count >= 1]
    return tuple(
        found.get(count) or outlook(table, eligible, traffic, count, rule) for count in shown
    )


def outlook(
    table: VariantTable,
    eligible: Sequence[int],
    traffic: Traffic,
    workers: int,
    rule: Rule | None = None,
) -> Outlook:
    """What `workers` give: the stationary chain, with residual services found by iteration."""
    if workers < 1:
        raise ValueError(f"workers must be at least 1, got {workers}")
    work = _Work(table, eligible, traffic, rule or Rule())
    residual, scv = work.fastest_ns * (1.0 + work.scv) / 2.0, work.scv
    chain = _Chain(work, workers, residual, scv)
    for _ in range(_ROUNDS):
        seen = chain.services()
        residual, scv = (residual + seen[0]) / 2.0, (scv + seen[1]) / 2.0
        chain = _Chain(work, workers, residual, scv)
    return chain.outlook()


def _check_reachable(work: _Work, percentile: float, quality: float) -> None:
    """Raises ValueError when not even a request that meets no other is answered well enough."""
    alone = work.dispatched(1, _MOST_WORKERS, 0.0, reserve_share(work.rule.reserve, 0.0))
    share = min(sum(alone.on_time), work.admitted(0.0, 1))
    if share < percentile:
        raise ValueError(
            f"{share:.4f} of the requests can be answered in time however many workers there "
            "are: give a longer deadline"
        )
    pairs = zip(work.table.candidates, alone.on_time, strict=True)
    best = sum(candidate.quality * part for candidate, part in pairs) / sum(alone.on_time)
    if best < quality:
        raise ValueError(
            f"the mean quality is {best:.4f} however many workers there are: give a longer "
            "deadline, or ask for less"
        )


def _least(work: _Work, traffic: Traffic, percentile: float) -> float:
    """Workers by Erlang C and Allen-Cunneen with everything on its fastest variant."""
    demand = Demand(traffic.rate_per_s, work.fastest_ns / 1e9, traffic.arrival_scv, work.scv)
    deadline = max(work.fastest_ns, traffic.deadline_ns - traffic.trip_ns) / 1e9
    try:
        return workers_for(demand, deadline, percentile).workers
    except ValueError:
        return demand.offered


class _Work:
    """The requests of a traffic on the eligible variants, and the rule that chooses."""

    def __init__(
        self, table: VariantTable, eligible: Sequence[int], traffic: Traffic, rule: Rule
    ) -> None:
        self.table = table
        self.traffic = traffic
        self.rule = rule
        self.estimates = []
        for length in traffic.lengths:
            shape = Shape.of_lengths([length])
            self.estimates.append(
                [
                    Estimate(k, float(c.profile.predict(shape)), max(c.profile.sigma, 1e-3))
                    for k, c in ((k, table.candidates[k]) for k in eligible)
                ]
            )
        self.fastest = [min(row, key=lambda e: e.predicted_ns) for row in self.estimates]
        count = len(self.fastest)
        self.fastest_ns = sum(e.predicted_ns for e in self.fastest) / count
        square = sum(e.predicted_ns**2 * (1 + e.sigma**2) for e in self.fastest) / count
        self.scv = square / self.fastest_ns**2 - 1.0
        self.arrivals_per_ns = traffic.rate_per_s / 1e9

    def admitted(self, wait_ns: float, workers: int) -> float:
        """Share of the lengths that the door lets in behind a wait."""
        limit = self.traffic.deadline_ns - self.traffic.trip_ns
        z = self.rule.confidence_z
        inside = sum(
            completion_ns(e.predicted_ns, e.sigma, z, wait_ns, workers) <= limit
            for e in self.fastest
        )
        return inside / len(self.fastest)

    def dispatched(self, number: int, workers: int, residual_ns: float, share: float) -> _State:
        """A head is dispatched with `number` in the system, itself counted.

        As many as wait behind it have arrived since it did, which says how long it has waited.
        """
        waiting = max(0, number - workers)
        slack = self.traffic.deadline_ns - waiting / self.arrivals_per_ns
        busy = min(number - 1, workers - 1) * residual_ns
        good = [0.0] * len(self.table)
        service = square = late = 0.0
        for row, fastest in zip(self.estimates, self.fastest, strict=True):
            chosen = self._choose(row, fastest, slack, busy, waiting, workers, share)
            if chosen is None:
                late += 1.0
                continue
            ratio = (slack - self.traffic.trip_ns) / chosen.predicted_ns
            chance = _normal_cdf((ratio - 1.0) / chosen.sigma)
            good[chosen.variant] += chance
            late += 1.0 - chance
            service += chosen.predicted_ns
            square += chosen.predicted_ns**2 * (1.0 + chosen.sigma**2)
        count = len(self.estimates)
        return _State(
            max(service / count, 1.0),
            square / count,
            tuple(value / count for value in good),
            late / count,
        )

    def _choose(
        self,
        row: Sequence[Estimate],
        fastest: Estimate,
        slack_ns: float,
        busy_ns: float,
        waiting: int,
        workers: int,
        share: float,
    ) -> Estimate | None:
        """The live rule's choice for the head; None when it is dropped."""
        situation = Situation(
            slack_ns=int(slack_ns),
            deadline_ns=self.traffic.deadline_ns,
            busy_ns=busy_ns,
            queued_ns=waiting * self.fastest_ns,
            waiting=waiting,
            workers=workers,
            hopeful_ns=fastest.predicted_ns,
            trip_ns=self.traffic.trip_ns,
        )
        decision = late_binding(row, situation, z=self.rule.confidence_z, reserve=share)
        if decision.kind is DecisionKind.DROP:
            return None
        return next(estimate for estimate in row if estimate.variant == decision.variant)


class _Chain:
    """The stationary chain for one number of workers.

    `residual_ns` is the mean residual of a running service, `scv` the squared coefficient of
    variation of services.
    """

    def __init__(self, work: _Work, workers: int, residual_ns: float, scv: float) -> None:
        self._work = work
        self._workers = workers
        utilisation = work.arrivals_per_ns * work.fastest_ns / workers
        share = reserve_share(work.rule.reserve, utilisation)
        variability = max((work.traffic.arrival_scv + scv) / 2.0, 0.05)
        self._states: list[_State] = []  # by number in the system at dispatch, from 1
        self._admitted: list[float] = []  # by number in the system at arrival, from 0
        logs = [0.0]
        highest = 0.0
        for number in range(workers + _MOST_WAITING):
            wait = 0.0
            if number >= workers:
                wait = (residual_ns + (number - workers) * work.fastest_ns) / workers
            admitted = work.admitted(wait, workers)
            self._admitted.append(admitted)
            self._states.append(work.dispatched(number + 1, workers, residual_ns, share))
            if not admitted:
                break
            busy = min(number + 1, workers)
            ratio = work.arrivals_per_ns * admitted * self._states[-1].service_ns / busy
            exponent = 1.0 / variability if number >= workers else 1.0
            logs.append(logs[-1] + exponent * math.log(ratio))
            highest = max(highest, logs[-1])
            if number >= workers and logs[-1] - highest < math.log(_NEGLIGIBLE):
                self._admitted.append(0.0)
                break
        weights = [math.exp(value - highest) for value in logs]
        total = sum(weights)
        self._share = [weight / total for weight in weights]

    def _dispatches(self) -> list[tuple[float, _State]]:
        """How often a head is dispatched in each state, as shares of what is offered.

        Who finds a worker free is dispatched at once; behind c others a head leaves the queue
        when one of them ends, as often as one arrives there.
        """
        entering = [p * a for p, a in zip(self._share, self._admitted, strict=True)]
        found = []
        for number, weight in enumerate(entering):
            dispatched_in = number + 1 if number < self._workers else number
            found.append((weight, self._states[dispatched_in - 1]))
        return found

    def services(self) -> tuple[float, float]:
        """Mean residual of a running service, `E[S^2] / 2 E[S]`, and the services' scv."""
        dispatches = self._dispatches()
        count = sum(weight for weight, _ in dispatches)
        if not count:
            return self._work.fastest_ns / 2.0, self._work.scv
        mean = sum(weight * state.service_ns for weight, state in dispatches) / count
        square = sum(weight * state.square_ns2 for weight, state in dispatches) / count
        return square / (2.0 * mean), square / mean**2 - 1.0

    def outlook(self) -> Outlook:
        """The chain's figures."""
        candidates = self._work.table.candidates
        by_variant = [0.0] * len(candidates)
        late = 0.0
        for weight, state in self._dispatches():
            late += weight * state.late
            for variant, share in enumerate(state.on_time):
                by_variant[variant] += weight * share
        on_time = sum(by_variant)
        busy = sum(p * min(n, self._workers) for n, p in enumerate(self._share))
        right = sum(c.quality * share for c, share in zip(candidates, by_variant, strict=True))
        return Outlook(
            workers=self._workers,
            on_time=on_time,
            refused=max(0.0, 1.0 - on_time - late),
            late=late,
            waiting=sum(
                p * a
                for n, (p, a) in enumerate(zip(self._share, self._admitted, strict=True))
                if n >= self._workers
            ),
            utilisation=busy / self._workers,
            quality=right / on_time if on_time else 0.0,
            mix={
                c.name: share / on_time
                for c, share in zip(candidates, by_variant, strict=True)
                if on_time and share / on_time > 5e-4
            },
        )


def _normal_cdf(value: float) -> float:
    return 0.5 * math.erfc(-value / math.sqrt(2.0))
