"""The decode lane's phases on a virtual clock: the live scheduler and what steps take."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from bench.isolation.decode import KINDS
from bench.isolation.lane import OTHER, STEADY
from bench.isolation.seen import ALONE, FLOOD, PHASES, Seen, figures, point, summarise
from bench.report import Report, host_facts, make_report
from worker.scheduling.blocks import blocks_for
from worker.scheduling.cost import StepCost, load_of
from worker.scheduling.records import Arrival, Ended, Refused, SchedulingSettings, Step
from worker.scheduling.scheduler import DecodeScheduler

_COST = StepCost(
    step_us=4400.0, prefill_us_per_token=920.0, sequence_us=800.0, cached_us_per_token=1.5
)
# What one thread completes a second of each tenant's generations when nothing else is there.
_CAPACITY = {STEADY: 14.5, OTHER: 2.5}
_BLOCKS, _CONTEXT = 256, 2048
_FIRST_NS, _TOKEN_NS = 500_000_000, 50_000_000


@dataclass(frozen=True, slots=True)
class SimulatedIsolation:
    """As `IsolationSettings`; steps scatter by `sigma`, and `step_ms` is `account_step_ns`."""

    rounds: int = 20
    seconds: float = 100.0
    reserved: float = 0.5
    used: float = 0.6
    times: float = 10.0
    sigma: float = 0.2
    step_ms: float = 40.0


@dataclass(frozen=True, slots=True)
class _Ask:
    due_ns: int
    tenant: str
    prompt: int
    answer: int

    @property
    def blocks(self) -> int:
        return blocks_for(self.prompt + self.answer - 1)


class _Played:
    """One phase of one round."""

    def __init__(
        self, settings: SimulatedIsolation, asks: list[_Ask], noise: np.random.Generator
    ) -> None:
        turn_ns = int(settings.step_ms * 1e6)
        self._scheduler = DecodeScheduler(
            SchedulingSettings(blocks=_BLOCKS, context=_CONTEXT, account_step_ns=turn_ns), _COST
        )
        steady = round(settings.reserved * _BLOCKS)
        self._reserved = {STEADY: steady, OTHER: _BLOCKS - steady}
        self._held = dict.fromkeys(self._reserved, 0)
        self._sigma = settings.sigma
        self._asks = asks
        self._noise = noise
        self._next = 0
        self._now_ns = 0
        self.seen = [Seen(ask.due_ns, 0, on_time=False, refused=True, times_ms={}) for ask in asks]

    def run(self) -> None:
        """Plays all to the last answer."""
        while True:
            self._submit(self._now_ns)
            step = self._scheduler.next_step(self._now_ns)
            if step is not None:
                self._end(step.ended, answered=False)
                if step.parts:
                    self._execute(step)
            elif self._next < len(self._asks):
                self._now_ns = self._asks[self._next].due_ns
            else:
                return

    def _submit(self, until_ns: int) -> None:
        """Who holds more blocks than are reserved is refused, as at the front door."""
        while self._next < len(self._asks) and self._asks[self._next].due_ns <= until_ns:
            number, ask = self._next, self._asks[self._next]
            self._next += 1
            reserved = self._reserved[ask.tenant]
            if self._held[ask.tenant] + ask.blocks > reserved:
                continue
            arrival = Arrival(
                sequence_id=number,
                tenant=ask.tenant,
                prompt=tuple(range(number << 10, (number << 10) + ask.prompt)),
                max_new_tokens=ask.answer,
                arrived_ns=ask.due_ns,
                first_token_target_ns=_FIRST_NS,
                token_target_ns=_TOKEN_NS,
                account=ask.tenant,
                account_weight=2.0 * reserved / _BLOCKS,
                account_room=reserved / _BLOCKS,
            )
            try:
                self._scheduler.submit(arrival, ask.due_ns)
            except Refused:
                continue
            self._held[ask.tenant] += ask.blocks

    def _execute(self, step: Step) -> None:
        load = load_of(step.parts)
        luck = self._noise.normal(-self._sigma * self._sigma / 2, self._sigma)
        took_ns = int((_COST.prefill_ns(load) + _COST.decode_ns(load)) * np.exp(luck))
        self._submit(self._now_ns + took_ns)
        self._now_ns += took_ns
        tokens = {part.sequence_id: 0 for part in step.parts if part.wants_logits}
        self._end(self._scheduler.completed(step, tokens, self._now_ns, took_ns), answered=True)

    def _end(self, ended: tuple[Ended, ...], *, answered: bool) -> None:
        for end in ended:
            ask, record = self._asks[end.sequence_id], end.record
            self._held[ask.tenant] -= ask.blocks
            if not answered:
                continue
            first_ns, gap_ns = record.first_token_ns, record.mean_gap_ns
            self.seen[end.sequence_id] = Seen(
                due_ns=ask.due_ns,
                over_ns=ask.due_ns + first_ns,
                on_time=first_ns <= _FIRST_NS and gap_ns <= _TOKEN_NS,
                refused=False,
                times_ms={"first_token_ms": first_ns / 1e6, "token_ms": gap_ns / 1e6},
            )


def simulate_isolation(settings: SimulatedIsolation) -> Report:
    """Plays every phase in each round, the steady tenant asking the same; see `summarise`.

    Summary: besides, `<phase>.other_on_time`, the other one's on-time share.
    """
    played: dict[str, list[list[Seen]]] = {phase: [] for phase in PHASES}
    others: dict[str, list[Seen]] = {phase: [] for phase in PHASES}
    points = []
    for number in range(1, settings.rounds + 1):
        for phase in PHASES:
            asks = _asks(settings, phase, number)
            world = _Played(settings, asks, np.random.default_rng((number, 3)))
            world.run()
            both = list(zip(asks, world.seen, strict=True))
            mine = [seen for ask, seen in both if ask.tenant == STEADY]
            played[phase].append(mine)
            others[phase] += [seen for ask, seen in both if ask.tenant == OTHER]
            found = point(figures([mine], _FIRST_NS))
            points.append({"round": number - 1, "phase": phase, "tenant": STEADY, **found})
    summary = summarise(played, _FIRST_NS, np.random.default_rng(0))
    for phase in PHASES:
        if others[phase]:
            summary[f"{phase}.other_on_time"] = figures([others[phase]], _FIRST_NS).on_time
    return make_report(
        "isolation-decode-simulated",
        host=host_facts(),
        settings=asdict(settings),
        points=points,
        summary=summary,
    )


def _asks(settings: SimulatedIsolation, phase: str, seed: int) -> list[_Ask]:
    steady = settings.used * settings.reserved
    asks = _drawn(np.random.default_rng((seed, 1)), STEADY, steady, settings.seconds)
    if phase != ALONE:
        load = (1.0 - settings.reserved) * (settings.times if phase == FLOOD else 1.0)
        asks += _drawn(np.random.default_rng((seed, 2)), OTHER, load, settings.seconds)
    return sorted(asks, key=lambda ask: ask.due_ns)


def _drawn(generator: np.random.Generator, tenant: str, load: float, seconds: float) -> list[_Ask]:
    """Poisson arrivals at this part of the tenant's capacity."""
    prompts, answers = KINDS[tenant]
    rate = load * _CAPACITY[tenant]
    asks, due_s = [], generator.exponential(1.0 / rate)
    while due_s < seconds:
        prompt = int(generator.integers(prompts[0], prompts[1] + 1))
        answer = int(generator.integers(answers[0], answers[1] + 1))
        asks.append(_Ask(int(due_s * 1e9), tenant, prompt, answer))
        due_s += generator.exponential(1.0 / rate)
    return asks
