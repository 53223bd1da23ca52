"""One open generation: from its place on a worker to its last event, and every way to its end."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Protocol

from controlplane import ends
from controlplane.errors import (
    Cancelled,
    ControlPlaneError,
    NotFound,
    Refused,
    Unavailable,
    WorkerFault,
)
from controlplane.generation.lanes import Lane
from controlplane.generation.plan import Plan
from controlplane.generation.progress import Progress
from controlplane.generation.records import (
    Admitted,
    Completed,
    Delta,
    Finished,
    GenerationEvent,
)
from controlplane.generation.routing import Candidate, long_enough, refusal
from controlplane.generation.work import DecodeCall, GenerationOrder, Placed, WorkerEvent
from controlplane.policy.decode import (
    Choice,
    Demand,
    Route,
    choose,
    choose_late,
    fairly,
    rank,
)
from controlplane.policy.decode_cost import unfinished_cost
from controlplane.policy.records import Provenance
from controlplane.wording import counted

_log = logging.getLogger(__name__)

_MS = 1_000_000
_BACK_MS = 1000
# A worker ends an answer at its deadline itself; this long after it nobody waits for that.
_GRACE_NS = 100 * _MS


class House(Protocol):
    """What an open generation needs of the service."""

    def now_ns(self) -> int: ...

    def candidates(self, plan: Plan) -> list[Candidate]: ...

    def admitted(self, generation: Generation, queue_ns: int) -> None: ...

    def began(self, generation: Generation) -> None: ...

    def ended(self, generation: Generation, error: BaseException | None) -> None: ...


class Generation:
    """Iterate for the events; whoever opened it closes it, on every path (`async with`).

    The first event is Admitted, the last Completed. One event is read from the worker when
    one is asked for, so a slow reader holds nothing but what the transports have in
    flight. Iteration raises the ControlPlaneError that the generation ends with. Not for
    several readers; lives on the event loop.
    """

    def __init__(self, house: House, plan: Plan, progress: Progress) -> None:
        self.plan = plan
        self.progress = progress
        self._house = house
        self._call: DecodeCall | None = None
        self._lane: Lane | None = None
        self._candidate: Candidate | None = None
        self._tried: set[int] = set()
        self._lost: set[int] = set()
        # The call is given up; what it tells yet came too late.
        self._abandoned = False
        # It waits as long as its deadline lets it, for its targets went with a worker.
        self._patient = False
        self._told = False
        self._refusal: Refused | None = None
        self._first: GenerationEvent | None = None
        self._ended = False
        self._closing: ControlPlaneError | None = None

    # --- the reader -----------------------------------------------------------------

    async def place(self) -> None:
        """Send it, and wait until a worker has admitted it or the last one refused."""
        self._first = await self._next()

    def __aiter__(self) -> Generation:
        return self

    async def __anext__(self) -> GenerationEvent:
        if self._first is not None:
            event, self._first = self._first, None
            return event
        if self._ended:
            raise StopAsyncIteration
        try:
            event = await self._next()
        except BaseException as error:
            self.end(error)
            raise
        if isinstance(event, Completed):
            self.end(None)
        return event

    async def __aenter__(self) -> Generation:
        return self

    async def __aexit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """The reader goes away; what has not ended is cancelled on its worker at once."""
        self.end(Cancelled("the caller went away"))

    def end(self, error: BaseException | None) -> None:
        """Free everything, once; `error` is why there is no whole answer."""
        if self._ended:
            return
        self._ended = True
        self._account_unfinished()
        if self._lane is not None:
            self._lane.session.tally.charge(*self.progress.charged())
        self._drop()
        self._house.ended(self, error)

    # --- the lane -------------------------------------------------------------------

    @property
    def model(self) -> str:
        """The model that answers."""
        return self.plan.model.name

    @property
    def movable(self) -> bool:
        """True while no part of an answer was told."""
        return not self._told

    def abandon(self) -> None:
        """The worker is lost or silent; the reader learns of it, or another worker takes over."""
        if self._call is not None:
            self._abandoned = True
            self._call.cancel()

    def shut(self, error: ControlPlaneError) -> None:
        """The house closes: the reader gets `error`."""
        self._closing = error
        self.abandon()

    # --- the way to a worker --------------------------------------------------------

    async def _next(self) -> GenerationEvent:
        while True:
            if self._call is None:
                self._send()
            assert self._call is not None
            try:
                event = await self._call.next()
                if self._abandoned and self.movable:
                    raise WorkerFault("its worker was given up")
                return self._translated(event)
            except Refused as refused:
                self._refusal = refused
                self._elsewhere(refused)
            except (WorkerFault, NotFound) as fault:
                self.progress.lost += 1
                _log.warning(
                    "generation %d failed after %d token(s): %s",
                    self.plan.id,
                    self.progress.tokens,
                    fault,
                )
                self._elsewhere(fault)

    def _elsewhere(self, error: ControlPlaneError) -> None:
        """The call failed: leave the worker, so that another may be tried, or give up."""
        lane = self._lane
        assert lane is not None
        trace = self.plan.trace
        if trace is not None:
            trace.lost(lane, self._house.now_ns(), ends.word_of(error))
        self._drop()
        if self._closing is not None:
            raise self._closing
        if self._told and not self.plan.whole:
            raise Unavailable(
                f"worker {lane.session.identity.id} was lost after "
                f"{counted(self.progress.tokens, 'token')} of the answer; what came before holds",
                _BACK_MS,
            ) from error
        self._told = False
        self.progress.begin_again()
        self._tried.add(lane.session.number)
        if not isinstance(error, Refused):
            self._lost.add(lane.session.number)

    def _send(self) -> None:
        """Order it from the best worker that was not tried; raises when there is none."""
        if self._closing is not None:
            raise self._closing
        plan, now = self.plan, self._house.now_ns()
        eligible = self._eligible()
        found = self._left(eligible)
        demand = Demand(
            prompt_tokens=len(plan.prompt),
            target_ns=plan.arrived_ns + plan.target_ns - now,
            token_ns=plan.token_ns,
            slack_ns=plan.deadline_ns - plan.response_ns - now,
            asked=bool(plan.ask.first_token_target_ns),
            token_asked=bool(plan.ask.token_target_ns),
        )
        routes = [self._own(each) for each in found]
        if self._lost:
            choice = choose_late(routes, demand, patient=self._patient)
        else:
            choice = choose(routes, demand)
        self.progress.choice = choice
        if not choice.routes:
            if self._refusal is not None:
                raise self._refusal
            raise refusal(choice, demand, (plan.deadline_ns - plan.arrived_ns) / 1e6)
        first = choice.routes[0]
        candidate = found[first]._replace(route=routes[first])
        best = min([rank(each.route) for each in eligible])
        self._order(candidate, choice, now, approximation=rank(candidate.route) > best)

    def _own(self, candidate: Candidate) -> Route:
        """The route as its account finds it."""
        plan, route = self.plan, candidate.route
        if not plan.account:
            return route
        own = candidate.lane.correction(self.model, route.variant, plan.account)
        mine = fairly(route, plan.account, len(plan.prompt), plan.weights)
        return mine._replace(correction=own)

    def _eligible(self) -> list[Candidate]:
        try:
            return self._house.candidates(self.plan)
        except Unavailable:
            if self._refusal is not None:
                raise self._refusal from None
            raise

    def _left(self, eligible: list[Candidate]) -> list[Candidate]:
        left = self._untried(eligible)
        if not left and self._refusal is not None and self._lost and not self._patient:
            # Who refused was told a target, and only the deadline counts.
            self._patient, self._tried = True, set(self._lost)
            left = self._untried(eligible)
        if not left:
            if self._refusal is not None:
                raise self._refusal
            before = "its answer was whole" if self.plan.whole else "the first token"
            raise Unavailable(
                f"the worker was lost before {before} and no other decode worker "
                f"has model {self.model!r}",
                _BACK_MS,
            )
        limits = self.plan.ask.limits
        return long_enough(left, self.plan.model, len(self.plan.prompt), limits.max_tokens)

    def _untried(self, eligible: list[Candidate]) -> list[Candidate]:
        return [each for each in eligible if each.lane.session.number not in self._tried]

    def _order(
        self, candidate: Candidate, choice: Choice, now: int, *, approximation: bool
    ) -> None:
        plan, route, lane = self.plan, candidate.route, candidate.lane
        limits, trace = plan.ask.limits, plan.trace
        if not limits.max_tokens and route.most_tokens:
            limits = replace(limits, max_tokens=route.most_tokens - len(plan.prompt))
        traceparent = plan.traceparent
        if trace is not None and trace.recording:
            traceparent = trace.send(now, lane)
        order = GenerationOrder(
            id=plan.id,
            model=self.model,
            variant=candidate.variant.name,
            prompt=plan.prompt,
            sampling=plan.ask.sampling,
            limits=limits,
            tenant=plan.prefix_scope,
            ends_ns=plan.deadline_ns - plan.response_ns,
            gone_ns=plan.deadline_ns + _GRACE_NS,
            first_token_by_ns=now + choice.target_ns,
            token_target_ns=choice.token_ns,
            traceparent=traceparent,
            account=plan.account,
            account_weight=plan.weights.get(plan.account, 1.0),
            work_price=plan.work_price,
            account_room=plan.account_room,
            first_token_target_grows=not plan.ask.first_token_target_ns,
        )
        self.progress.provenance = Provenance(
            model=self.model,
            model_version=plan.model.version,
            variant=candidate.variant.name,
            manifest_digest=plan.model.manifest_digest,
            reason=choice.reason,
            approximation=approximation or plan.cut,
            quality=route.quality or 0.0,
            worker_id=lane.session.identity.id,
            overload_level=plan.overload_level,
        )
        progress = self.progress
        self._candidate, self._lane, progress.sent_ns = candidate, lane, now
        progress.sends += 1
        progress.placed_ns = 0
        progress.route, progress.threads = route, lane.session.identity.threads
        progress.width = route.load.decoding + limits.n
        lane.enter(plan.id, self, len(plan.prompt), now)
        self._call = lane.port.generate(order)

    # --- what the worker says -------------------------------------------------------

    def _translated(self, event: WorkerEvent) -> GenerationEvent:
        provenance = self.progress.provenance
        assert provenance is not None
        if isinstance(event, Delta):
            if not self.progress.first_token_ns:
                self._begun()
            self._told = True
            self.progress.tokens += len(event.token_ids)
            return event
        if isinstance(event, Placed):
            self.progress.prompt_tokens = event.prompt_tokens
            self.progress.cached_tokens = event.cached_tokens
            self.progress.placed_ns = self._house.now_ns()
            self._house.admitted(self, event.queue_ns)
            return Admitted(event.prompt_tokens, event.cached_tokens, event.queue_ns, provenance)
        if isinstance(event, Finished):
            self._told = True
            self.progress.finish = self.progress.finish or event.reason.value
            return event
        self.progress.usage = event
        if self._lane is not None:
            self._lane.answered[self.model, provenance.variant] += 1
        return Completed(event, provenance)

    def _account_unfinished(self) -> None:
        """Whoever leaves before the end pays for what his worker has done until then."""
        plan, progress = self.plan, self.progress
        placed, route = progress.placed_ns, progress.route
        if self._lane is None or progress.usage is not None or not placed or route is None:
            return
        now = self._house.now_ns()
        first = plan.arrived_ns + progress.first_token_ns if progress.first_token_ns else now
        progress.unfinished = unfinished_cost(
            progress.setting(route),
            max(0, len(plan.prompt) - progress.cached_tokens),
            progress.tokens,
            plan.ask.limits.n,
            read_ns=max(0, first - placed),
            written_ns=now - first,
            cached=progress.cached_tokens,
        )

    def _begun(self) -> None:
        """The first token is there: nobody waits for this prompt any more."""
        now = self._house.now_ns()
        plan, progress, lane, candidate = self.plan, self.progress, self._lane, self._candidate
        progress.first_token_ns = now - self.plan.arrived_ns
        if lane is None or candidate is None or progress.choice is None:
            return
        progress.first_in_target = now - progress.sent_ns <= progress.choice.target_ns
        self._house.began(self)
        lane.begun(self.plan.id)
        # A prompt that was cached says nothing of what reading one takes.
        if not progress.cached_tokens:
            prompt_tokens, token_ns = len(self.plan.prompt), progress.choice.token_ns
            took_ns = now - progress.sent_ns
            lane.took(candidate.route, prompt_tokens, token_ns, took_ns, plan.account)

    def _drop(self) -> None:
        call, lane = self._call, self._lane
        self._call = self._lane = None
        self._abandoned = False
        if lane is not None:
            lane.leave(self.plan.id)
        if call is not None:
            call.cancel()
