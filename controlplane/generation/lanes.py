"""Decode workers as generations are sent to them: who is there, how loaded, how trusted."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from controlplane.deployed import VariantInfo
from controlplane.generation.quality import measured_quality
from controlplane.generation.work import DecodePort
from controlplane.policy.decode import DecodeLoad, Route, corrected, first_token_ns
from controlplane.registry import Registry, WorkerSession, WorkerState
from controlplane.watch import silence_limit_ns

_log = logging.getLogger(__name__)

# A report that comes this soon after a prompt was sent may have left before it arrived.
_IN_TRANSIT_NS = 10_000_000
# A worker that drained has answered everything when it leaves; its last words are on their way.
LAST_WORDS_S = 2.0
# One that is silent for so many times the limit is no machine that is busy.
_GIVEN_UP = 10


class Guest(Protocol):
    """A generation as its lane sees it."""

    @property
    def model(self) -> str: ...

    @property
    def movable(self) -> bool:
        """True while nothing of it was told, so that another worker may take it over."""

    def abandon(self) -> None:
        """Its worker is lost or silent."""


class _Sent(NamedTuple):
    id: int
    model: str
    tokens: int
    at_ns: int


class Lane:
    """One decode worker. Lives on the event loop."""

    def __init__(self, session: WorkerSession, port: DecodePort) -> None:
        self.session = session
        self.port = port
        self.guests: dict[int, Guest] = {}
        self.answered: Counter[tuple[str, str]] = Counter()
        self._sent: deque[_Sent] = deque()
        # By model, variant and account; that of no account is of everybody.
        self._corrections: dict[tuple[str, str, str], float] = {}

    def load(self, model: str) -> DecodeLoad:
        """The last report of a model's arena; empty before the first."""
        for load in self.session.load.decode:
            if load.model == model:
                return load
        return DecodeLoad(model=model)

    def open(self, model: str) -> int:
        """Generations of a model that are there now."""
        return sum(guest.model == model for guest in self.guests.values())

    def correction(self, model: str, variant: str, account: str = "") -> float:
        """What first tokens take over what the profile says, of everybody or of an account.

        Each account learns from its own, as one that floods waits for itself.
        """
        return self._corrections.get((model, variant, account), 1.0)

    def route(self, model: str, context: int, variant: VariantInfo) -> Route:
        """The variant here, as the policy sees it; it must have its decode profile."""
        profile = variant.decode
        assert profile is not None
        bounds = (context, variant.max_tokens, profile.arena_tokens)
        return Route(
            worker=self.session.number,
            variant=variant.name,
            precision=variant.precision,
            quality=measured_quality(variant),
            profile=profile,
            load=self.load(model),
            most_tokens=min((bound for bound in bounds if bound), default=0),
            sent_tokens=sum(sent.tokens for sent in self._sent if sent.model == model),
            correction=self.correction(model, variant.name),
        )

    def enter(self, number: int, guest: Guest, prompt_tokens: int, now_ns: int) -> None:
        """A generation is sent here."""
        self.guests[number] = guest
        self._sent.append(_Sent(number, guest.model, prompt_tokens, now_ns))

    def leave(self, number: int) -> None:
        """A generation ended or went elsewhere; may be repeated."""
        if self.guests.pop(number, None) is not None:
            self.begun(number)

    def begun(self, number: int) -> None:
        """Its prompt is no work ahead of others any more."""
        for sent in self._sent:
            if sent.id == number:
                self._sent.remove(sent)
                return

    def took(
        self, route: Route, prompt_tokens: int, token_ns: int, took_ns: int, account: str = ""
    ) -> None:
        """A first token came `took_ns` after its prompt was sent here over `route`."""
        nominal = first_token_ns(route._replace(correction=1.0), prompt_tokens, token_ns)
        for who in {"", account}:
            key = route.load.model, route.variant, who
            self._corrections[key] = corrected(self._corrections.get(key, 1.0), took_ns, nominal)

    def reported(self, now_ns: int) -> None:
        """A report came: it counts what was sent well before it."""
        sent = self._sent
        while sent and sent[0].at_ns <= now_ns - _IN_TRANSIT_NS:
            sent.popleft()


class Lanes:
    """The attached decode workers. Every method is called on one event loop."""

    def __init__(
        self,
        registry: Registry,
        *,
        now_ns: Callable[[], int],
        loop: asyncio.AbstractEventLoop,
        report_interval_ms: int,
    ) -> None:
        self._registry = registry
        self._now_ns = now_ns
        self._loop = loop
        self._report_interval_ms = report_interval_ms
        # A busy machine holds reports up for longer than a loss takes to be seen.
        self._silence_ns = silence_limit_ns(None, report_interval_ms, last=True)
        self._lanes: dict[int, Lane] = {}
        self._watch: asyncio.TimerHandle | None = None
        self._look_due_ns = 0

    def attach(self, session: WorkerSession, port: DecodePort) -> None:
        """The worker can be asked from now on."""
        session.heard_ns = self._now_ns()
        lane = self._lanes[session.number] = Lane(session, port)
        self._settle(lane)
        if self._watch is None:
            self._look_later()

    def detach(self, session: WorkerSession) -> None:
        """The worker is gone, and what it held with it.

        One that left in good order, when it had drained, is heard to its end for a moment.
        """
        lane = self._lanes.pop(session.number, None)
        if lane is None:
            return
        session.state = WorkerState.LOST
        if session.load.draining and lane.guests:
            self._loop.call_later(LAST_WORDS_S, _abandon, lane)
        else:
            _abandon(lane)

    def heard(self, session: WorkerSession) -> None:
        """A message came from the worker; the registry has its load."""
        session.heard_ns = self._now_ns()
        lane = self._lanes.get(session.number)
        if lane is not None:
            lane.reported(session.heard_ns)
            self._settle(lane)

    def lane(self, number: int) -> Lane | None:
        """The worker of a session; None when it is gone."""
        return self._lanes.get(number)

    def serving(self, model: str, without: Iterable[int] = ()) -> tuple[Lane, ...]:
        """Workers that have the model ready and may be asked for it.

        Silent ones are left out while there is another, and those who are silent for ten times
        the limit always: what they have is not lost yet, but nothing new should wait for that.
        """
        membership = self._registry.membership(model)
        if membership is None:
            return ()
        left_out = frozenset(without)
        there = [
            lane
            for number, lane in self._lanes.items()
            if membership.workers.get(number) and number not in left_out
        ]
        ready = [lane for lane in there if lane.session.state is WorkerState.READY]
        if ready:
            return tuple(ready)
        heard_ns = self._now_ns() - _GIVEN_UP * self._silence_ns
        return tuple(
            [
                lane
                for lane in there
                if lane.session.state is WorkerState.SUSPECT and lane.session.heard_ns > heard_ns
            ]
        )

    def all(self) -> tuple[Lane, ...]:
        """Every attached worker."""
        return tuple(self._lanes.values())

    def close(self) -> None:
        """Stop the timer and let everything go."""
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        for lane in self.all():
            self.detach(lane.session)

    def _settle(self, lane: Lane) -> None:
        session = lane.session
        before = session.state
        silent_ns = self._now_ns() - session.heard_ns
        if session.load.draining:
            session.state = WorkerState.DRAINING
        elif silent_ns >= self._silence_ns:
            session.state = WorkerState.SUSPECT
        else:
            session.state = WorkerState.READY
        if session.state is before:
            return
        if before is not WorkerState.CONNECTING:
            _log.info("worker %s is %s", session.identity.id, session.state.value)

    def _move(self, lane: Lane) -> None:
        """What a silent worker has told nothing of goes to another that is heard."""
        for guest in tuple(lane.guests.values()):
            others = self.serving(guest.model, without=(lane.session.number,))
            heard = any(other.session.state is WorkerState.READY for other in others)
            if guest.movable and heard:
                guest.abandon()

    def _look(self) -> None:
        # After a standstill of this process what workers told meanwhile is read first.
        overdue_ns = self._now_ns() - self._look_due_ns
        if overdue_ns < self._silence_ns // 2:
            lanes = self.all()
            for lane in lanes:
                self._settle(lane)
            for lane in lanes:
                if lane.session.state is WorkerState.SUSPECT:
                    self._move(lane)
        self._watch = None
        if self._lanes:
            self._look_later()

    def _look_later(self) -> None:
        self._look_due_ns = self._now_ns() + self._report_interval_ms * 1_000_000
        self._watch = self._loop.call_later(self._report_interval_ms / 1000, self._look)


def _abandon(lane: Lane) -> None:
    for guest in tuple(lane.guests.values()):
        guest.abandon()
