"""Attached workers: which of them may get work, and who notices when one falls silent."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from controlplane.policy.hands import Flight
from controlplane.policy.records import Request, carried_bytes
from controlplane.policy.scheduler import Scheduler
from controlplane.registry import Registry, WorkerSession, WorkerState
from controlplane.watch import suspicion
from controlplane.work import WorkerPort, batch_of, item_id

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Member:
    session: WorkerSession
    port: WorkerPort
    watch: asyncio.TimerHandle | None = None


class Members:
    """Tells the scheduler which workers exist and which to trust. Lives on the event loop.

    `suspected` is called with the flights of a worker that became suspect, `settled` when
    a worker may take work that could not before.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        registry: Registry,
        *,
        now_ns: Callable[[], int],
        loop: asyncio.AbstractEventLoop,
        report_interval_ms: int,
        suspected: Callable[[tuple[Flight, ...]], None],
        settled: Callable[[], None],
    ) -> None:
        self._scheduler = scheduler
        self._registry = registry
        self._now_ns = now_ns
        self._loop = loop
        self._report_interval_ms = report_interval_ms
        self._suspected = suspected
        self._settled = settled
        self._members: dict[int, _Member] = {}

    def attach(self, session: WorkerSession, port: WorkerPort) -> None:
        """A worker's stream is open."""
        member = _Member(session, port)
        self._members[session.number] = member
        session.heard_ns = self._now_ns()
        self._assign(member)
        self._look_at_others(member)
        self._watch(member, session.heard_ns)

    def detach(self, session: WorkerSession) -> tuple[Flight, ...]:
        """A worker is gone; returns what it held."""
        member = self._members.pop(session.number, None)
        if member is None:
            return ()
        if member.watch is not None:
            member.watch.cancel()
        session.state = WorkerState.LOST
        held = self._scheduler.remove_worker(session.number)
        self._look_at_suspects()
        return held

    def sessions(self) -> tuple[WorkerSession, ...]:
        """The attached workers."""
        return tuple(member.session for member in self._members.values())

    def port(self, number: int) -> WorkerPort | None:
        """The way to a worker; None when it is gone."""
        member = self._members.get(number)
        return None if member is None else member.port

    def send(self, flight: Flight) -> None:
        """Give a worker a run; it must be attached."""
        port = self.port(flight.worker)
        assert port is not None, "the scheduler only knows attached workers"
        port.send(batch_of(flight))

    def cancel(self, flight: Flight, request: Request) -> None:
        """Tell a worker, if it is still there, that nobody waits for a request of a run."""
        port = self.port(flight.worker)
        if port is not None:
            port.cancel((item_id(flight.id, flight.requests.index(request)),))

    def suspect_flights(self) -> list[tuple[Flight, ...]]:
        """What each suspect worker holds."""
        return [
            self._scheduler.flights(session.number)
            for session in self.sessions()
            if session.state is WorkerState.SUSPECT
        ]

    def reassign(self) -> None:
        """The registry's memberships changed."""
        for member in self._members.values():
            self._assign(member)

    def heard(self, session: WorkerSession) -> None:
        """A message came from the worker; it may say that it drains."""
        session.heard_ns = self._now_ns()
        draining = session.load.draining
        if draining != (session.state is WorkerState.DRAINING) or (
            session.state is WorkerState.SUSPECT
        ):
            member = self._members.get(session.number)
            if member is not None:
                self._settle(member)

    def _assign(self, member: _Member) -> None:
        number = member.session.number
        ready = {}
        for model in self._scheduler.pools:
            membership = self._registry.membership(model)
            names = None if membership is None else membership.workers.get(number)
            if names:
                ready[model] = names
        self._scheduler.set_worker(number, ready, self._now_ns())

    def _settle(self, member: _Member) -> None:
        """Put the worker into the state that its load and its silence call for."""
        session = member.session
        now = self._now_ns()
        before = session.state
        if session.load.draining:
            session.state = WorkerState.DRAINING
        elif self._suspicion(session, now)[0]:
            session.state = WorkerState.SUSPECT
        else:
            session.state = WorkerState.READY
        if session.state is before:
            return
        # While it serves nothing, such as during its first warm-up, nobody is concerned.
        level = logging.INFO if self._serves(session) else logging.DEBUG
        _log.log(level, "worker %s is %s", session.identity.id, session.state.value)
        self._scheduler.trust(session.number, session.state is WorkerState.READY, now)
        if session.state is WorkerState.SUSPECT:
            self._suspected(self._scheduler.flights(session.number))
        elif session.state is WorkerState.DRAINING:
            self._look_at_suspects()
        elif session.state is WorkerState.READY:
            self._look_at_others(member)
            self._settled()

    def _serves(self, session: WorkerSession) -> bool:
        memberships = map(self._registry.membership, session.models)
        return any(m is not None and session.number in m.workers for m in memberships)

    def _look_at_others(self, member: _Member) -> None:
        """One more worker is trusted: who was the last of a pool has no privilege any more.

        An interval later, so that messages that are here already are read before.
        """
        interval_s = self._report_interval_ms / 1000
        due_ns = self._now_ns() + self._report_interval_ms * 1_000_000
        for other in self._members.values():
            if other is not member and other.watch is not None:
                other.watch.cancel()
                other.watch = self._loop.call_later(interval_s, self._watch, other, due_ns)

    def _look_at_suspects(self) -> None:
        """One worker less is trusted: who is the last of a pool now is given more time."""
        for other in self._members.values():
            if other.session.state is WorkerState.SUSPECT:
                self._settle(other)

    def _watch(self, member: _Member, due_ns: int) -> None:
        """Look at a worker when it could have become suspect, and say when to look again."""
        now = self._now_ns()
        interval_ns = self._report_interval_ms * 1_000_000
        at_ns = now + interval_ns
        # A loop that was held up itself has messages of the workers to read first.
        if now - due_ns <= interval_ns // 2:
            self._settle(member)
            session = member.session
            suspect, limit_ns = self._suspicion(session, now)
            # A suspect is looked at again after an interval: its run may have ended.
            at_ns = at_ns if suspect else limit_ns
        delay_s = max((at_ns - now) / 1e9, 0.001)
        member.watch = self._loop.call_later(delay_s, self._watch, member, at_ns)

    def _suspicion(self, session: WorkerSession, now_ns: int) -> tuple[bool, int]:
        flights = self._scheduler.flights(session.number)
        return suspicion(
            flights[0] if flights else None,
            session.heard_ns,
            now_ns,
            self._report_interval_ms,
            last=self._scheduler.last_worker(session.number),
            carried_bytes=sum(carried_bytes(r.payload) for f in flights for r in f.requests),
        )
