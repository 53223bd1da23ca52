"""Many requests in flight on one stream: the mechanism that both front doors share.

A message costs no task and no future of its own: the reader submits it, its end puts the
answer into an outbox, and one writer empties that. Only texts that need a tokenizer
thread take a task. Messages that come fast are submitted in bunches (`Gathering`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import grpc

from controlplane import ends
from controlplane.errors import ControlPlaneError, InvalidRequest, Unavailable
from controlplane.policy.records import Answer, Request
from controlplane.rpc.asks import Ask
from controlplane.rpc.gathering import MOST_GATHERED, Gathering
from controlplane.rpc.intake import Intake
from controlplane.rpc.services import Context, log_fault
from controlplane.rpc.status import Status, status_of
from controlplane.telemetry.timeline import REQUEST
from controlplane.telemetry.trace import CURRENT, CallTrace
from protos.codec import Undecodable
from protos.tracing.spans import Kind

# Requests of one stream that were read and whose answers are not yet written. The reader
# waits beyond it, and the transport's flow control then holds the caller back.
MAX_OUTSTANDING = 1024
# When a caller whose stream was drained may try again, by then elsewhere or after a restart.
DRAINED_RETRY_MS = 1000
# How long the transport may take to cancel a call that it could not write to.
_LOST_S = 1.0

Extra = TypeVar("Extra")


class Dialect(Protocol[Extra]):
    """How one protocol reads and writes the messages of a stream."""

    def identify(self, message: Any) -> str:
        """The caller's own id of a request."""

    def open(self, message: Any) -> tuple[Ask, Extra]:
        """The ask of a message, and what the writer of its answer needs to know.

        Raises ControlPlaneError.
        """

    def answered(self, answer: Answer, request_id: str, extra: Extra) -> Any:
        """The message that carries an answer."""

    def failed(self, status: Status, request_id: str) -> Any:
        """The message that says why a request has no answer."""


class _Traced(NamedTuple):
    """A message on its way to the caller, and the trace that ends when it has left."""

    message: Any
    trace: CallTrace


class Stream(Generic[Extra]):
    """One caller's stream, from its first message to its last answer."""

    def __init__(
        self,
        intake: Intake,
        dialect: Dialect[Extra],
        context: Context,
        max_outstanding: int = MAX_OUTSTANDING,
    ) -> None:
        self._intake = intake
        self._dialect = dialect
        self._context = context
        self._max_outstanding = max_outstanding
        self._loop = asyncio.get_running_loop()
        self._trace = CURRENT.get() if intake.telemetry is not None else None
        self._outbox: deque[Any] = deque()
        self._leaving: CallTrace | None = None
        self._outstanding = 0
        self._gathering = Gathering(intake.gather_ns)
        # Messages that wait for those behind them, each with the time it came.
        self._held: list[tuple[Any, int]] = []
        self._due: asyncio.TimerHandle | None = None
        self._calls: set[_Call[Extra]] = set()
        self._reading = True
        self._draining = False
        self._task: asyncio.Task[Any] | None = None
        self._writer_waits: asyncio.Future[None] | None = None
        self._reader_waits: asyncio.Future[None] | None = None

    async def serve(self) -> None:
        """Answer every message; ends after the caller's last message is answered.

        When the caller goes away, what is still in flight is cancelled at once. Raises
        Unavailable when the stream was drained, after what was in flight is answered.
        """
        self._task = asyncio.current_task()
        writer = self._loop.create_task(self._write())
        try:
            try:
                await self._read(writer)
            except asyncio.CancelledError:
                if not self._draining or self._task is None or self._task.uncancel() > 0:
                    raise
            if not writer.done():
                self._release()
            self._reading = False
            _wake(self._writer_waits)
            lost = await writer
        finally:
            writer.cancel()
            if self._due is not None:
                self._due.cancel()
            for call in tuple(self._calls):
                call.abandon()
            self._end_unsaid()
        if lost:
            # A call that returns before the transport knows of its loss ends in a fault there.
            await asyncio.sleep(_LOST_S)
        if self._draining:
            raise drained()

    def drain(self) -> None:
        """Read no further message; the stream ends when what is in flight is answered."""
        if not self._draining and self._reading and self._task is not None:
            self._draining = True
            self._task.cancel()

    async def _read(self, writer: asyncio.Task[bool]) -> None:
        while (message := await self._context.read()) is not grpc.aio.EOF:
            self._receive(message)
            if self._outstanding >= self._max_outstanding:
                self._reader_waits = self._loop.create_future()
                await asyncio.wait(
                    (self._reader_waits, writer), return_when=asyncio.FIRST_COMPLETED
                )
            if writer.done():
                return

    def _receive(self, message: Any) -> None:
        """Submit a message, now or with those that come behind it."""
        self._outstanding += 1
        now = self._intake.now_ns()
        gathering, held = self._gathering, self._held
        gathering.came(now)
        if held:
            held.append((message, now))
            if len(held) >= MOST_GATHERED:
                self._release()
        elif wait_ns := gathering.wait_ns():
            held.append((message, now))
            self._due = self._loop.call_later(wait_ns / 1e9, self._release)
        else:
            self._accept(message, now, now)

    def _release(self) -> None:
        """Submit what was held."""
        if self._due is not None:
            self._due.cancel()
            self._due = None
        held, self._held = self._held, []
        now = self._intake.now_ns()
        for message, at_ns in held:
            self._accept(message, at_ns, now)

    def _accept(self, message: Any, at_ns: int, now_ns: int) -> None:
        """Submit a message that came at `at_ns`."""
        call = _Call(self, at_ns)
        telemetry = self._intake.telemetry
        if telemetry is not None:
            call.trace = telemetry.inside(REQUEST, self._trace, call.at_ns)
        try:
            if type(message) is Undecodable:
                raise InvalidRequest(str(message))
            if isinstance(message, ControlPlaneError):
                raise message
            call.id = self._dialect.identify(message)
            ask, call.extra = self._dialect.open(message)
            call.ask = ask
            remaining = self._context.time_remaining()
            if remaining is not None:
                # It runs from the message's time, as the request's own deadline does.
                remaining += (now_ns - at_ns) / 1e9
            deadline = self._intake.deadline_ns(ask, at_ns, remaining)
            self._gathering.accepted(deadline - at_ns)
            self._calls.add(call)
            request = self._intake.request_now(ask, call.at_ns, deadline, call.trace)
            if request is None:
                call.tokenising = self._loop.create_task(self._tokenise(call, ask, deadline))
            else:
                call.submit(request)
        except Exception as error:
            self.fail(call, error)

    async def _tokenise(self, call: _Call[Extra], ask: Ask, deadline_ns: int) -> None:
        try:
            request = await self._intake.request(ask, call.at_ns, deadline_ns, call.trace)
            call.submit(request)
        except Exception as error:
            self.fail(call, error)
        finally:
            call.tokenising = None

    def finish(self, call: _Call[Extra], answer: Answer) -> None:
        """Put an answer into the outbox and count it."""
        assert call.ask is not None
        assert call.extra is not None
        started_ns = self._intake.now_ns()
        try:
            message = self._dialect.answered(answer, call.id, call.extra)
        except Exception as error:
            self.fail(call, error)
            return
        spent_ns = self._intake.now_ns() - started_ns
        call.ask.view.counters.succeeded(answer.outcome, spent_ns)
        self._put(call, message)

    def fail(self, call: _Call[Extra], error: BaseException) -> None:
        """Put the reason why there is no answer into the outbox and count it."""
        if not isinstance(error, ControlPlaneError):
            log_fault(error)
        if call.ask is not None:
            call.ask.view.counters.failed(self._intake.now_ns() - call.at_ns)
        if call.trace is not None:
            call.trace.failed(ends.word_of(error))
        self._put(call, self._dialect.failed(status_of(error), call.id))

    def _put(self, call: _Call[Extra], message: Any) -> None:
        self._calls.discard(call)
        if call.trace is not None and call.trace.recording:
            message = _Traced(message, call.trace)
        self._outbox.append(message)
        _wake(self._writer_waits)

    async def _write(self) -> bool:
        """Empty the outbox until all is answered; returns whether the caller was lost before."""
        outbox, write = self._outbox, self._context.write
        while True:
            while outbox:
                message = outbox.popleft()
                if type(message) is _Traced:
                    message, self._leaving = message
                try:
                    await write(message)
                except grpc.aio.InternalError:
                    return True  # the reader is about to hear of it
                if self._leaving is not None:
                    self.end(self._leaving)
                    self._leaving = None
                self._outstanding -= 1
            if self._outstanding < self._max_outstanding:
                _wake(self._reader_waits)
            if not self._reading and self._outstanding == 0:
                return False
            self._writer_waits = self._loop.create_future()
            await self._writer_waits

    def end(self, trace: CallTrace) -> None:
        """One message is answered, or never will be."""
        telemetry = self._intake.telemetry
        if telemetry is not None:
            kind = Kind.INTERNAL if trace.parent_id else Kind.SERVER
            telemetry.finish(trace, self._intake.now_ns(), kind)

    def _end_unsaid(self) -> None:
        """The stream is over: what is recorded of answers that nobody was told goes out, too."""
        unsaid = [message.trace for message in self._outbox if type(message) is _Traced]
        if self._leaving is not None:
            unsaid.append(self._leaving)
        for trace in unsaid:
            trace.failed("cancelled")
            self.end(trace)

    @property
    def intake(self) -> Intake:
        """Where this stream's requests go."""
        return self._intake


class OpenStreams:
    """The streams that are open now, so that a shutdown can drain them."""

    def __init__(self, intake: Intake) -> None:
        self._intake = intake
        self._open: set[Stream[Any]] = set()
        self._draining = False

    async def serve(self, dialect: Dialect[Any], context: Context) -> None:
        """Serve one caller's stream to its end; raises Unavailable after `drain`."""
        if self._draining:
            raise drained()
        stream = Stream(self._intake, dialect, context)
        self._open.add(stream)
        try:
            await stream.serve()
        finally:
            self._open.discard(stream)

    def drain(self) -> None:
        """Let every open stream end once what it has in flight is answered."""
        self._draining = True
        for stream in tuple(self._open):
            stream.drain()


class _Call(Generic[Extra]):
    """One message of a stream until its answer is in the outbox; waits for its end itself."""

    __slots__ = (
        "ask",
        "at_ns",
        "extra",
        "id",
        "over",
        "request",
        "stream",
        "tokenising",
        "trace",
    )

    def __init__(self, stream: Stream[Extra], at_ns: int) -> None:
        self.stream = stream
        self.at_ns = at_ns
        self.id = ""
        self.ask: Ask | None = None
        self.extra: Extra | None = None
        self.tokenising: asyncio.Task[None] | None = None
        self.request: Request | None = None
        self.over = False
        self.trace: CallTrace | None = None

    def submit(self, request: Request) -> None:
        """Admit the request; raises like `Dispatcher.submit`."""
        self.stream.intake.attend(request, self)
        self.request = request

    def done(self) -> bool:
        """Whether its end is known, or nobody wants to know it."""
        return self.over

    def set_result(self, answer: Answer, /) -> None:
        """The answer is there."""
        self.over = True
        self.stream.finish(self, answer)

    def set_exception(self, error: BaseException, /) -> None:
        """There is none."""
        self.over = True
        self.stream.fail(self, error)

    def exception(self) -> None:
        """Nothing: an error is written to the stream when it is set."""

    def abandon(self) -> None:
        """Nobody waits for the answer any more."""
        if self.tokenising is not None:
            self.tokenising.cancel()
        self.over = True
        if self.request is not None:
            self.stream.intake.cancel(self.request)
        if self.ask is not None:
            self.ask.view.counters.failed(self.stream.intake.now_ns() - self.at_ns)
        if self.trace is not None:
            self.trace.failed("cancelled")
            self.stream.end(self.trace)


def drained() -> Unavailable:
    """Why a stream ends though its caller has not ended it."""
    return Unavailable("the control plane is shutting down", DRAINED_RETRY_MS)


def _wake(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)
