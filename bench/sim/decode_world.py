"""Generations on a virtual clock: the live decode scheduler, and an engine that only takes time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from bench.sim.decode_workload import GenerationLoad, TokenTargets
from controlplane.generation.prices import GenerationPrices
from controlplane.policy.records import RequestClass
from worker.scheduling.cost import StepCost, load_of
from worker.scheduling.policies import SchedulingPolicy
from worker.scheduling.records import (
    Arrival,
    Ended,
    Reason,
    Refused,
    SchedulingSettings,
    SequenceRecord,
    Step,
)
from worker.scheduling.scheduler import DecodeScheduler

_MODEL: Final = "m"


class Party(NamedTuple):
    """Whose generations are played: the tenant, the account on the worker and its weight, and what
    part of its limit an answer takes.
    """

    tenant: str = ""
    answer_share: float = 1.0
    account: str = ""
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class DecodeSimSettings:
    """The simulated worker: its arena and limits, what steps cost and how much they scatter.

    `sigma` is the spread of lognormal noise of mean 1 on each step. `believed` is the profile
    that the scheduler begins with, None the true one. `answer_share` is what part of its limit
    an answer takes: the scheduler is told the limit only. Where a load says whose generations are
    whose, `parties` are they; with `prices` the control plane's prices of cohorts come with them.
    """

    scheduling: SchedulingSettings
    cost: StepCost
    sigma: float = 0.05
    believed: StepCost | None = None
    answer_share: float = 1.0
    parties: tuple[Party, ...] = ()
    prices: bool = False


@dataclass(frozen=True, slots=True)
class DecodeSimResult:
    """One simulated point; counts and shares are over all that was offered.

    `slo_attainment` is the share whose first token and mean gap both met their targets.
    Times in ms; nan without a finished generation. `per_s` is finished generations over the
    span, `goodput_per_s` those that met both targets.
    """

    policy: str
    offered: int
    finished: int
    refused: int
    shed: int
    slo_attainment: float
    first_token_attainment: float
    token_attainment: float
    ttft_p50_ms: float
    ttft_p95_ms: float
    gap_p50_ms: float
    gap_p95_ms: float
    max_gap_p95_ms: float
    preemptions: float
    per_s: float
    goodput_per_s: float
    utilisation: float

    def as_point(self) -> dict[str, Any]:
        """The result as JSON values; what is not a number becomes null."""
        return {k: None if v != v else v for k, v in asdict(self).items()}


class DecodeWorld:
    """One run: the scheduler's loop with a clock that jumps.

    `records` are those of the generations that were answered, by their number in the load;
    `prices` is None where nobody has any.
    """

    def __init__(
        self,
        load: GenerationLoad,
        targets: TokenTargets,
        policy: SchedulingPolicy,
        settings: DecodeSimSettings,
        generator: np.random.Generator,
    ) -> None:
        cost = settings.cost
        self.scheduler = DecodeScheduler(settings.scheduling, settings.believed or cost, policy)
        self._load = load
        self._targets = targets
        self._cost = cost
        self._sigma = settings.sigma
        self._parties = settings.parties or (Party(answer_share=settings.answer_share),)
        self.prices = GenerationPrices() if settings.prices else None
        self._generator = generator
        self._next = 0
        self.now_ns = 0
        self.busy_ns = 0
        self.refused = 0
        self.shed = 0
        self.records: dict[int, SequenceRecord] = {}

    def run(self) -> None:
        """Plays the whole load to its last answer."""
        arrived = self._load.arrived_ns
        while True:
            self._submit_until(self.now_ns)
            step = self.scheduler.next_step(self.now_ns)
            if step is not None:
                self._note(step.ended)
                if step.parts:
                    self._execute(step)
            elif self._next < len(self._load):
                self.now_ns = int(arrived[self._next])
            else:
                return

    def _submit_until(self, until_ns: int) -> None:
        arrived = self._load.arrived_ns
        while self._next < len(self._load) and arrived[self._next] <= until_ns:
            number = self._next
            self._next += 1
            arrival = self._arrival(number)
            try:
                self.scheduler.submit(arrival, arrival.arrived_ns)
            except Refused:
                self.refused += 1

    def _arrival(self, number: int) -> Arrival:
        load, party = self._load, self._party(number)
        prompt, arrived = int(load.prompt[number]), int(load.arrived_ns[number])
        price = 1.0
        if self.prices is not None:
            price = self.prices.price(_MODEL, RequestClass(tenant=party.tenant), prompt, arrived)
        return Arrival(
            sequence_id=number,
            tenant=party.tenant,
            prompt=tuple(range(number << 16, (number << 16) + prompt)),
            max_new_tokens=self._limit(number),
            arrived_ns=arrived,
            first_token_target_ns=self._targets.first_token_ns,
            token_target_ns=self._targets.token_ns,
            account=party.account,
            account_weight=party.weight,
            work_price=price,
        )

    def _party(self, number: int) -> Party:
        who = self._load.who
        return self._parties[0 if who is None else int(who[number])]

    def _limit(self, number: int) -> int:
        return max(1, round(int(self._load.answer[number]) / self._party(number).answer_share))

    def _execute(self, step: Step) -> None:
        load = load_of(step.parts)
        nominal = self._cost.prefill_ns(load) + self._cost.decode_ns(load)
        noise = self._generator.normal(-self._sigma * self._sigma / 2, self._sigma)
        took = int(nominal * np.exp(noise))
        # Who arrives while a step runs is told at once whether it may wait.
        self._submit_until(self.now_ns + took)
        self.now_ns += took
        self.busy_ns += took
        tokens = {part.sequence_id: 0 for part in step.parts if part.wants_logits}
        self._note(self.scheduler.completed(step, tokens, self.now_ns, took))
        for number in tokens:
            if number not in self.records:
                done = self.scheduler.record(number).generated_tokens
                if done >= self._load.answer[number]:
                    record = self.scheduler.finish(number)
                    assert record is not None
                    self._answered(number, record)

    def _note(self, ended: tuple[Ended, ...]) -> None:
        for end in ended:
            if end.reason == Reason.LENGTH:
                self._answered(end.sequence_id, end.record)
            else:
                self.shed += 1

    def _answered(self, number: int, record: SequenceRecord) -> None:
        self.records[number] = record
        if self.prices is not None:
            klass = RequestClass(tenant=self._party(number).tenant)
            prompt, limit = record.prompt_tokens, self._limit(number)
            generated = record.generated_tokens
            self.prices.observe(_MODEL, klass, prompt, limit, generated, self.now_ns)


def simulate(
    load: GenerationLoad,
    targets: TokenTargets,
    policy: SchedulingPolicy,
    settings: DecodeSimSettings,
    generator: np.random.Generator,
) -> DecodeSimResult:
    """One policy on one load; the generator draws the noise of the steps."""
    engine = DecodeWorld(load, targets, policy, settings, generator)
    engine.run()
    return _reduce(policy.name, engine, len(load), targets)


def _reduce(
    policy: str, engine: DecodeWorld, offered: int, targets: TokenTargets
) -> DecodeSimResult:
    records = engine.records
    first = np.array([r.first_token_ns for r in records.values()])
    gaps = np.array([r.mean_gap_ns for r in records.values()])
    longest = np.array([r.max_gap_ns for r in records.values()])
    early, quick = first <= targets.first_token_ns, gaps <= targets.token_ns
    met = int((early & quick).sum())
    span_s = max(1, engine.now_ns) / 1e9
    return DecodeSimResult(
        policy=policy,
        offered=offered,
        finished=len(records),
        refused=engine.refused,
        shed=engine.shed,
        slo_attainment=met / offered if offered else 0.0,
        first_token_attainment=int(early.sum()) / offered if offered else 0.0,
        token_attainment=int(quick.sum()) / offered if offered else 0.0,
        ttft_p50_ms=_percentile(first, 50),
        ttft_p95_ms=_percentile(first, 95),
        gap_p50_ms=_percentile(gaps, 50),
        gap_p95_ms=_percentile(gaps, 95),
        max_gap_p95_ms=_percentile(longest, 95),
        preemptions=_mean_preemptions(records),
        per_s=len(records) / span_s,
        goodput_per_s=met / span_s,
        utilisation=engine.busy_ns / max(1, engine.now_ns),
    )


def _mean_preemptions(records: Mapping[int, SequenceRecord]) -> float:
    return sum(r.preemptions for r in records.values()) / max(1, len(records))


def _percentile(values_ns: Any, share: float) -> float:
    return float(np.percentile(values_ns, share)) / 1e6 if len(values_ns) else float("nan")
