"""The owner of the queues: takes requests, gives them to workers, ends every one of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from controlplane import ends
from controlplane.accounts import Accounts
from controlplane.config import ControlPlaneConfig
from controlplane.deployment import (
    Disagreements,
    deploy,
    deployment_of,
    effective_class,
    policy_of,
    policy_settings,
    renewed,
)
from controlplane.errors import Cancelled, ControlPlaneError, Unavailable, WorkerFault
from controlplane.expiry import Deadlines
from controlplane.gauges import gauges, violations
from controlplane.measures import NONE, Callers
from controlplane.members import Members
from controlplane.pending import Pending, Waiter
from controlplane.policy.admission import Refusal
from controlplane.policy.hands import Flight
from controlplane.policy.pool import Pool
from controlplane.policy.records import Answer, Request
from controlplane.policy.scheduler import Scheduler, Shed
from controlplane.policy.tenancy.tenancy import Tenancy
from controlplane.pump import Pump
from controlplane.records.recorder import RequestRecorder
from controlplane.redispatch import Redispatch
from controlplane.registry import ModelInfo, Registry, WorkerSession
from controlplane.second_looks import SecondLooks, first_alone
from controlplane.telemetry.telemetry import Telemetry
from controlplane.tenants import TenantsConfig
from controlplane.work import BatchDone, ItemDone, ItemStatus, WorkerPort, place_of

# Turns of the loop between a call's bytes and its place in the queue: those who wait to share
# a short run leave with those whom the loop has in its hands already.
_COMPANY_TURNS = 6


class Dispatcher:
    """All state belongs to `loop`; every method is called on it and none of them blocks."""

    def __init__(
        self,
        config: ControlPlaneConfig,
        registry: Registry,
        *,
        now_ns: Callable[[], int],
        loop: asyncio.AbstractEventLoop,
        telemetry: Telemetry | None = None,
        callers: Callers | None = None,
        records: RequestRecorder | None = None,
    ) -> None:
        self._config = config
        self._registry = registry
        self._now_ns = now_ns
        self._loop = loop
        policy = policy_of(config)
        callers = callers or Callers(config.classes)
        self._accounts = Accounts(
            callers, telemetry, policy=policy.name, now_ns=now_ns, records=records
        )
        self.counters = self._accounts.counters
        self.measures = self._accounts.measures
        self._scheduler = Scheduler(policy, policy_settings(config))
        self._deadlines = Deadlines(loop, now_ns, self._expire)
        self._pending: dict[int, Pending] = {}
        self._pump = Pump(
            self._scheduler, now_ns=now_ns, loop=loop, send=self._send, shed=self._shed
        )
        self._redispatch = Redispatch(
            self._scheduler,
            self._pending,
            self._accounts,
            self._pump,
            now_ns=now_ns,
            fail=self._fail,
        )
        self._members = Members(
            self._scheduler,
            registry,
            now_ns=now_ns,
            loop=loop,
            report_interval_ms=config.report_interval_ms,
            suspected=self._redispatch.suspected,
            settled=self._pump.soon,
        )
        self._last_id = 0
        self.cascades = SecondLooks(
            self._scheduler, self._pending, self._deadlines, self.next_id, self._end, self._give
        )
        if config.tenants:
            self.set_tenants(config.tenants)
        self._disagreements = Disagreements(config.classes)

    # --- callers --------------------------------------------------------------------

    def now_ns(self) -> int:
        """The monotonic clock that every time of a request is on."""
        return self._now_ns()

    def next_id(self) -> int:
        """A request id that this process never gives again."""
        self._last_id += 1
        return self._last_id

    def submit(self, request: Request) -> asyncio.Future[Answer]:
        """Admit a request. The future ends with an Answer or a ControlPlaneError.

        Raises Refused, Unavailable, NotFound, InvalidRequest, Unsatisfiable or TooLate
        when the request is not admitted; nothing is kept of it then.
        """
        future: asyncio.Future[Answer] = self._loop.create_future()
        self.attend(request, future)
        return future

    def attend(self, request: Request, waiter: Waiter) -> None:
        """The same for a waiter that is told at once, not in the next turn of the loop.

        What it does then must be short and must not call the dispatcher.
        """
        # Callers may name any model; only deployed ones are counted apart.
        known = request.model if request.model in self._scheduler.pools else ""
        self._accounts.arrived(known, request)
        try:
            self._admit(request)
        except ControlPlaneError as error:
            self._accounts.turned_away(known, request, error)
            raise
        self._pending[request.id] = Pending(request, waiter)
        self._deadlines.add(request.id, request.deadline_ns)
        if self._scheduler.stirs(request):
            self._pump.soon()

    def cancel(self, request: Request) -> None:
        """The caller went away: queued work is dropped, running work cancelled on its worker."""
        pending = self._pending.get(request.id)
        if pending is not None:
            self._fail(pending, Cancelled("the caller went away"))

    def close(self) -> None:
        """End what is left and stop every timer."""
        for pending in list(self._pending.values()):
            self._fail(pending, Unavailable("the control plane is shutting down", 1000))
        for session in self._members.sessions():
            self.detach(session)
        self._deadlines.close()
        self._pump.close()

    def set_tenants(self, config: TenantsConfig) -> None:
        """Hold these tenants to their terms from now on, with what they have had and wait for."""
        self._scheduler.set_tenancy(renewed(self._scheduler.tenancy, config))
        self._pump.soon()

    def lags(self, lag_ns: float, next_ns: int) -> None:
        """The event loop is so late, and is looked at again then: for every pool's ladder."""
        for pool in self._scheduler.pools.values():
            pool.ladder.looked(lag_ns, next_ns)

    def optional_work_allowed(self) -> bool:
        """Whether work that no answer needs may be done now: no pool is overloaded."""
        pools = self._scheduler.pools.values()
        return all(pool.ladder.optional_work_allowed() for pool in pools)

    # --- views ----------------------------------------------------------------------

    @property
    def tenancy(self) -> Tenancy | None:
        """What tenants have reserved and used; None when there are none."""
        return self._scheduler.tenancy

    @property
    def policy(self) -> str:
        """Name of the policy that decides."""
        return self._scheduler.policy.name

    def pools(self) -> tuple[Pool, ...]:
        """Every pool there has been; for looking only."""
        return tuple(self._scheduler.pools.values())

    @property
    def host_cpu_percent(self) -> float:
        """How busy the workers' machines are, smoothed, 0 to 100."""
        return self._scheduler.host_cpu_percent

    def flights(self, session: WorkerSession) -> tuple[Flight, ...]:
        """What a worker holds, the running one first; for looking only."""
        return self._scheduler.flights(session.number)

    def gauges(self) -> dict[str, int]:
        """What goes up and comes down again: all 0 when nothing is in the house."""
        return gauges(self._scheduler, pending=len(self._pending), deadlines=len(self._deadlines))

    def violations(self) -> list[str]:
        """Every broken invariant; empty when everything adds up."""
        return violations(self._scheduler, self.gauges(), self._now_ns())

    # --- membership -----------------------------------------------------------------

    def attach(self, session: WorkerSession, port: WorkerPort) -> None:
        """A worker's stream is open: give it work from now on, also that of suspect ones."""
        self._members.attach(session, port)
        for flights in self._members.suspect_flights():
            self._redispatch.suspected(flights)
        self._pump.soon()

    def detach(self, session: WorkerSession) -> None:
        """A worker is gone: what it had is queued again while its slack allows."""
        fault = WorkerFault(f"worker {session.identity.id!r} was lost while executing")
        for flight in self._members.detach(session):
            self._redispatch.rescue(flight, fault)
        self._pump.soon()

    def refresh(self, models: frozenset[str]) -> None:
        """The registry's membership of these models changed."""
        for name in models:
            membership = self._registry.membership(name)
            if membership is not None and not membership.model.generates:
                self._deploy(membership.model)
        self._members.reassign()
        self._pump.soon()
        self._disagreements.tell(self._registry.models())

    def heard(self, session: WorkerSession) -> None:
        """A message came from the worker."""
        self._members.heard(session)
        self._scheduler.host_cpu(session.load.host_cpu_percent, session.heard_ns)
        self._scheduler.refresh(session.heard_ns)

    # --- results --------------------------------------------------------------------

    def completed(self, session: WorkerSession, done: BatchDone) -> None:
        """A batch ended on a worker."""
        now = self._now_ns()
        flight = self._scheduler.finished(
            session.number,
            done.id,
            now,
            queue_ns=done.queue_ns,
            run_ns=done.run_ns,
            cpu_ns=done.cpu_ns,
            whole=any(item.status is ItemStatus.OK for item in done.items),
        )
        if flight is None:
            self.counters.unknown_results += 1
            return
        if done.run_ns:
            self._accounts.ran(flight, done.run_ns, done.cpu_ns, done.peak_bytes)
            session.tally.charge(done.cpu_ns)
        answered = 0
        for item in done.items:
            place = place_of(done.id, item.id)
            if 0 <= place < len(flight.requests):
                answered += 1
                self._item(session, flight, place, item, done, now)
        if answered < len(flight.requests):
            # The worker left items out: they did not run as far as anyone knows.
            self._redispatch.rescue(flight, WorkerFault("the worker gave no result"))
        pool = flight.pool
        self._pump.soon(_COMPANY_TURNS if pool.held and pool.queued < self._config.max_batch else 1)

    def _item(
        self,
        session: WorkerSession,
        flight: Flight,
        place: int,
        item: ItemDone,
        done: BatchDone,
        now: int,
    ) -> None:
        request = flight.requests[place]
        pending = self._pending.get(request.id)
        executed = item.status is ItemStatus.OK
        if executed and flight.sent_ns + done.queue_ns > request.deadline_ns:
            self.counters.expired_work_executed += 1
        if pending is None:
            self.counters.late_results += executed
            return
        current = pending.drop(flight)
        if executed:
            if now > request.deadline_ns:
                self.counters.late_results += 1
                self._fail(pending, ends.expired(request))
                return
            answer = ends.answer(
                request=request,
                place=place,
                flight=flight,
                item=item,
                done=done,
                info=deployment_of(flight.table),
                worker_id=session.identity.id,
                now_ns=now,
            )
            if request.cascade:
                if current and self.cascades.took(pending, flight, answer, now):
                    return
                answer = first_alone(answer)
            self._end(pending, queued=not current)
            self._give(pending, answer, now)
        elif current:
            error = ends.failure(item, request.model)
            if isinstance(error, Unavailable | WorkerFault):
                self._redispatch.again(pending, flight, error)
            else:
                self._fail(pending, error)

    # --- dispatching ----------------------------------------------------------------

    def _admit(self, request: Request) -> None:
        tenancy = self._scheduler.tenancy
        if tenancy is not None:
            tenancy.authorise(request.klass, request.model)
            request.cell = tenancy.cell(request.klass, request.id)
        pool = self._scheduler.pools.get(request.model)
        if pool is None:
            # Raises NotFound when nobody has the model, rather than not yet.
            self._registry.model(request.model)
        if pool is None or not pool.live:
            self.measures.refuse(NONE if pool is None else request.model, Refusal.NO_WORKER)
            raise ends.unready(request.model, self._registry.membership(request.model))
        request.klass = effective_class(request.klass, self._config.classes)
        request.eligible = pool.table.eligible(request.klass, request.shapes)
        request.offered_ns, request.ahead = self._now_ns(), pool.queued
        request.admission = admission = self._scheduler.offer(request, request.offered_ns)
        if not admission.admitted:
            self.measures.refuse(request.model, admission.reason)
            raise ends.refusal(request, admission)
        if request.trace is not None:
            request.trace.admitted_ns = self._now_ns()

    def _shed(self, step: Shed) -> None:
        if step.decision.slack_ns > 0 and step.request.stage is None:
            self.measures.refuse(step.request.model, step.decision.reason)
        self._fail(self._pending[step.request.id], ends.shed(step))

    def _send(self, flight: Flight) -> None:
        for request in flight.requests:
            request.dispatches += 1
            request.dispatched_ns = flight.sent_ns
            self._pending[request.id].flight = flight
        self._accounts.sent(flight)
        self._members.send(flight)

    def _deploy(self, info: ModelInfo) -> None:
        for request, error in deploy(self._scheduler, info, self._config.quality_resolution):
            reason = f"no live worker can answer the request any more: {error}"
            self._fail(self._pending[request.id], Unavailable(reason, 1000))

    # --- endings --------------------------------------------------------------------

    def _end(self, pending: Pending, *, queued: bool = True) -> None:
        """Take a request out of everything; runs that nobody waits for are cancelled.

        `queued` false says that it is known not to be in a queue.
        """
        request = pending.request
        del self._pending[request.id]
        self._deadlines.discard(request.id)
        if pending.flight is not None:
            self._members.cancel(pending.flight, request)
        elif queued:
            self._scheduler.withdraw(request, self._now_ns())
        for flight in pending.others:
            self._members.cancel(flight, request)

    def _give(self, pending: Pending, answer: Answer, now: int) -> None:
        if not pending.waiter.done():
            pending.waiter.set_result(answer)
        self._accounts.answered(pending.request, answer, now)

    def _fail(self, pending: Pending, error: ControlPlaneError) -> None:
        self._end(pending)
        if pending.kept is not None and self.cascades.settled(pending, error, self._now_ns()):
            return
        if not pending.waiter.done():
            pending.waiter.set_exception(error)
            # Nobody may be left to look at it; that is no fault of the request.
            pending.waiter.exception()
        self._accounts.failed(pending.request, error)

    def _expire(self, request_id: int) -> None:
        pending = self._pending.get(request_id)
        if pending is not None and not self.cascades.goes_on(pending, self._now_ns()):
            self._fail(pending, ends.expired(pending.request))
