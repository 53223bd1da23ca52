"""Generations: the one way in for every front door, and the owner of all that are open."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Protocol

from controlplane import ends
from controlplane.config import ControlPlaneConfig
from controlplane.deployed import ModelInfo
from controlplane.deployment import effective_class
from controlplane.errors import (
    ControlPlaneError,
    InvalidRequest,
    NotFound,
    Refused,
    TooLate,
    Unavailable,
)
from controlplane.generation.checks import check_ask
from controlplane.generation.lanes import Lanes
from controlplane.generation.measures import GenerationMeasures
from controlplane.generation.open import Generation
from controlplane.generation.overload import Overload
from controlplane.generation.plan import Plan
from controlplane.generation.prices import GenerationPrices
from controlplane.generation.progress import Progress
from controlplane.generation.quotas import Quotas
from controlplane.generation.records import (
    Caller,
    GenerationAsk,
    GenerationLimits,
    Prompt,
    PromptTokens,
)
from controlplane.generation.routing import Candidate, answer_fits, candidates, long_enough, unready
from controlplane.generation.spans import Ended, generation_ended
from controlplane.measures import NONE, Callers
from controlplane.policy.records import RequestClass
from controlplane.records.generations import GenerationRecorder
from controlplane.registry import Registry
from controlplane.telemetry.telemetry import Telemetry
from controlplane.telemetry.timeline import GENERATION
from controlplane.telemetry.trace import CallTrace, is_sampled
from controlplane.wording import listed, shown

_MS = 1_000_000
_LONGEST_DEADLINE_MS = 24 * 3600 * 1000
ANYONE = Caller()


Listener = Callable[[Plan, Progress, int, BaseException | None], None]


class Prompting(Protocol):
    """What turns prompts into tokens."""

    async def tokens(self, model: ModelInfo, prompt: Prompt) -> tuple[int, ...]: ...


class Generations:
    """Opens generations and knows all that are open. Every method is called on one event loop."""

    def __init__(
        self,
        config: ControlPlaneConfig,
        registry: Registry,
        lanes: Lanes,
        prompts: Prompting,
        *,
        now_ns: Callable[[], int],
        telemetry: Telemetry | None = None,
        callers: Callers | None = None,
        records: GenerationRecorder | None = None,
    ) -> None:
        self.lanes = lanes
        self.measures = GenerationMeasures(callers or Callers(config.classes))
        self.quotas = Quotas()
        self.prices = GenerationPrices()
        self.overload = Overload(config, registry, lanes)
        self._config = config
        self._registry = registry
        self._prompts = prompts
        self._now_ns = now_ns
        self._telemetry = telemetry
        self._records = records
        self._last_id = 0
        self._arrived: Counter[str] = Counter()
        self._open: dict[int, Generation] = {}
        self._outcomes: dict[str, Counter[str]] = {}
        self._redispatched: Counter[str] = Counter()
        self._mean_ns = 1e9
        self._draining = False
        # Told of every generation that was checked and has ended, and how long it was here.
        self.listener: Listener | None = None

    # --- callers --------------------------------------------------------------------

    def now_ns(self) -> int:
        """The monotonic clock that every time of a generation is on."""
        return self._now_ns()

    async def open(self, ask: GenerationAsk, caller: Caller = ANYONE) -> Generation:
        """Check, tokenise, route, and wait until a worker has admitted it.

        Returns the open generation, whose first event is Admitted; close it on every path.
        Raises InvalidRequest (a field, a prompt longer than the context, a model that does
        not generate), NotFound (model, variant), Unsatisfiable (class, target, template),
        Refused (not now), TooLate, or Unavailable; nothing is kept of it then.
        """
        arrived = self._now_ns()
        self._last_id += 1
        number = self._last_id
        trace = None if self._telemetry is None else self._telemetry.own(GENERATION, arrived)
        counted = ask.model if self._known(ask.model) else ""
        self._arrived[counted] += 1
        self.measures.arrived(counted or NONE, ask.klass)
        try:
            plan = await self._plan(number, ask, caller, arrived, trace)
            generation = self._open[number] = Generation(self, plan, Progress())
        except BaseException as error:
            self._arrived[counted] -= 1
            self._count(counted, ask.klass, error, Progress())
            self._record(trace, Ended(counted, ask, None, Progress(), arrived, _outcome(error)))
            raise
        try:
            await generation.place()
        except BaseException as error:
            if isinstance(error, Refused):
                self.overload.told(plan.model.name, refused=True)
            generation.end(error)
            raise
        self.overload.told(plan.model.name, refused=False)
        return generation

    async def tokenize(self, ask: GenerationAsk, caller: Caller = ANYONE) -> PromptTokens:
        """The tokens that a worker would get of the ask's prompt; nothing is opened or counted.

        Raises what `open` does of the same model, prompt and deadline.
        """
        deadline = self._deadline(ask, caller, self._now_ns())
        model = self._generator(ask.model)
        self.quotas.authorise(ask.klass, ask.model)
        check_ask(ask, model)
        settings = model.generation
        assert settings is not None
        return PromptTokens(await self._tokens(model, ask, deadline), settings.context)

    def drain(self) -> None:
        """Open no more; those that are open go on."""
        self._draining = True

    def close(self) -> None:
        """End what is open: its readers get Unavailable."""
        self.drain()
        for generation in tuple(self._open.values()):
            generation.shut(Unavailable("the control plane is shutting down", 1000))
        self.lanes.close()

    # --- views ----------------------------------------------------------------------

    def gauges(self) -> dict[str, int]:
        """What goes up and comes down again: all 0 when nothing is open."""
        return {
            "generations": sum(self._arrived.values()),
            "generation_calls": sum(len(lane.guests) for lane in self.lanes.all()),
        }

    def open_of(self, model: str) -> int:
        """Generations of a model from their arrival to their end."""
        return self._arrived[model]

    def outcomes(self, model: str) -> Mapping[str, int]:
        """How generations of a model ended, by outcome."""
        return self._outcomes.get(model, {})

    def redispatched(self, model: str) -> int:
        """Sends of a model's generations to a worker after another one was lost."""
        return self._redispatched[model]

    # --- for open generations -------------------------------------------------------

    def candidates(self, plan: Plan) -> list[Candidate]:
        """Where it may go now; raises Unavailable or Unsatisfiable."""
        return candidates(self._registry, self.lanes, plan.model, plan.klass)

    def admitted(self, generation: Generation, queue_ns: int) -> None:
        """A worker gave it a place."""
        self.measures.admitted(generation.plan, generation.progress, queue_ns)

    def began(self, generation: Generation) -> None:
        """Its first token is there."""
        self.measures.began(generation.plan, generation.progress)

    def ended(self, generation: Generation, error: BaseException | None) -> None:
        """A generation has ended and freed what it held."""
        plan, progress = generation.plan, generation.progress
        del self._open[plan.id]
        cpu_ns, live_token_ms = progress.charged()
        self.quotas.release(plan.id, live_token_ms)
        if cpu_ns or error is None:
            self.measures.callers.charge(plan.klass, cpu_ns)
        self._arrived[plan.model.name] -= 1
        self._redispatched[plan.model.name] += progress.lost if progress.sends > 1 else 0
        took_ns = self._now_ns() - plan.arrived_ns
        self._mean_ns += 0.1 * (took_ns - self._mean_ns)
        self._count(plan.model.name, plan.klass, error, progress)
        if error is None:
            self.measures.completed(plan, progress, took_ns)
            self.prices.learn(plan, progress, plan.arrived_ns + took_ns)
        if self.listener is not None:
            self.listener(plan, progress, took_ns, error)
        outcome = _outcome(error)
        ended = Ended(plan.model.name, plan.ask, plan, progress, plan.arrived_ns, outcome)
        self._record(plan.trace, ended)

    # --- from an ask to a plan ------------------------------------------------------

    async def _plan(
        self,
        number: int,
        ask: GenerationAsk,
        caller: Caller,
        arrived: int,
        trace: CallTrace | None,
    ) -> Plan:
        if self._draining:
            raise Unavailable("the control plane is shutting down", 1000)
        most = self._config.max_generations
        if sum(self._arrived.values()) > most:
            raise Refused(
                f"{most} generations are open; the bound is reached",
                max(1, int(self._mean_ns / most / _MS)),
            )
        model = self._generator(ask.model)
        self.quotas.authorise(ask.klass, ask.model)
        check_ask(ask, model)
        klass = effective_class(ask.klass, self._config.classes)
        deadline = self._deadline(ask, caller, arrived)
        # When nobody may answer, the prompt need not be tokenised.
        found = candidates(self._registry, self.lanes, model, klass)
        answer_fits(found, model, ask.limits.max_tokens)
        times = self._config.generation_times(klass.name)
        target_ns = ask.first_token_target_ns or times.first_token_ms * _MS
        token_ns = ask.token_target_ns or times.token_ms * _MS
        routes = [candidate.route for candidate in found]
        ladder = self.overload.newcomer(
            model.name, klass, routes, target_ns, token_ns, self._now_ns()
        )
        prompt = await self._tokens(model, ask, deadline)
        if not prompt:
            raise InvalidRequest("the prompt comes to no token; a prompt has at least one")
        bounded = self.quotas.bounded(klass, len(prompt), ask.limits)
        limits = self.overload.limited(ladder, klass, bounded)
        found = long_enough(found, model, len(prompt), limits.max_tokens)
        scope = self.quotas.prefix_scope(klass, number)
        total = self._hold(number, klass, found, len(prompt), limits)
        return Plan(
            id=number,
            ask=ask if limits is ask.limits else replace(ask, limits=limits),
            klass=klass,
            prefix_scope=scope,
            account=self.quotas.account(klass),
            weights=self.quotas.weights,
            work_price=self.prices.price(model.name, klass, len(prompt), arrived),
            account_room=self.quotas.room(klass, total),
            model=model,
            prompt=prompt,
            arrived_ns=arrived,
            deadline_ns=deadline,
            target_ns=target_ns,
            token_ns=token_ns,
            traceparent=self._passed_on(caller),
            response_ns=int(self._config.response_reserve_ms * _MS),
            planned_ns=self._now_ns(),
            trace=trace,
            overload_level=int(ladder.rung),
            cut=limits is not bounded,
            whole=caller.whole,
        )

    def _hold(
        self,
        number: int,
        klass: RequestClass,
        found: list[Candidate],
        prompt_tokens: int,
        limits: GenerationLimits,
    ) -> int:
        """Hold what the answers may come to need of the arenas that they may come to be in.

        Returns how many blocks these have.
        """
        most = max(candidate.route.most_tokens for candidate in found)
        answer = limits.max_tokens or max(1, most - prompt_tokens)
        loads = {candidate.lane: candidate.route.load for candidate in found}
        total = sum(load.total_blocks for load in loads.values())
        tokens = prompt_tokens + limits.n * answer
        self.quotas.take(number, klass, tokens, total, max(1, int(self._mean_ns / _MS)))
        return total

    def _generator(self, name: str) -> ModelInfo:
        membership = self._registry.membership(name)
        if membership is None:
            models = listed(m.name for m in self._registry.models() if m.generates)
            if not name:
                raise InvalidRequest(f"the model name is empty; models that generate: {models}")
            if self._registry.expects(name):
                raise unready(name, None)
            raise NotFound(f"no model {shown(name)} here; models that generate: {models}")
        model = membership.model
        if not model.generates:
            task = model.task or "tensors"
            raise InvalidRequest(
                f"model {shown(name)} does not generate text (its task is {task}); "
                "ask it with orchid.v1.Inference/Infer or ModelInfer"
            )
        return model

    def _deadline(self, ask: GenerationAsk, caller: Caller, arrived: int) -> int:
        left = ask.deadline_ns
        if left < 0 or (caller.remaining_s is not None and caller.remaining_s <= 0):
            raise TooLate("the deadline had passed when the generation came")
        if left > _LONGEST_DEADLINE_MS * _MS:
            raise InvalidRequest(
                f"deadline_ms is {left // _MS}; accepted: up to {_LONGEST_DEADLINE_MS}"
            )
        if caller.remaining_s is not None:
            call = int(caller.remaining_s * 1e9)
            left = min(left, call) if left else call
        return arrived + (left or self._config.generation_times(ask.klass.name).deadline_ms * _MS)

    async def _tokens(self, model: ModelInfo, ask: GenerationAsk, deadline: int) -> tuple[int, ...]:
        try:
            async with asyncio.timeout((deadline - self._now_ns()) / 1e9):
                return await self._prompts.tokens(model, ask.prompt)
        except TimeoutError:
            raise TooLate("the deadline passed while the prompt was being tokenised") from None

    # --- recording ------------------------------------------------------------------

    def _passed_on(self, caller: Caller) -> str:
        """The caller's own trace context, for the worker to join where nothing is recorded here."""
        if self._telemetry is not None:
            return self._telemetry.passed_on(caller.traceparent, self._now_ns())
        return caller.traceparent if is_sampled(caller.traceparent) else ""

    def _record(self, trace: CallTrace | None, ended: Ended) -> None:
        if self._records is not None:
            self._records.ended(ended, self._now_ns())
        if self._telemetry is not None:
            now = self._now_ns()
            generation_ended(self._telemetry, trace, ended, now)
            self._telemetry.finish_own(trace, now)

    # --- counting -------------------------------------------------------------------

    def _known(self, model: str) -> bool:
        membership = self._registry.membership(model)
        return membership is not None and membership.model.generates

    def _count(
        self, model: str, klass: RequestClass, error: BaseException | None, progress: Progress
    ) -> None:
        outcome = _outcome(error)
        self._outcomes.setdefault(model, Counter())[outcome] += 1
        self.measures.end(model or NONE, klass, outcome, error, progress)


def _outcome(error: BaseException | None) -> str:
    """The word under which an ending is counted."""
    if error is None:
        return ends.ANSWERED
    if isinstance(error, ControlPlaneError):
        return ends.word_of(error)
    return "cancelled" if isinstance(error, asyncio.CancelledError) else "failed"
