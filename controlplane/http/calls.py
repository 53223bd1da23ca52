"""One HTTP call: its headers, its body within bounds, its end when the caller goes away."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType, TracebackType

from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from controlplane import ends
from controlplane.errors import Cancelled, ControlPlaneError, TooLate, Unavailable
from controlplane.http.problems import (
    ErrorForm,
    InvalidField,
    NotReceived,
    Problem,
    TooLarge,
    UnsupportedCoding,
    problem_of,
)
from controlplane.rpc.asks import MAX_DEADLINE_MS
from controlplane.rpc.services import log_fault
from controlplane.security.guard import INFER, Guard, Standing
from controlplane.security.identities import Identity
from controlplane.telemetry.telemetry import Telemetry
from controlplane.telemetry.trace import CURRENT, CallTrace

# Where the connection puts the names in its caller's certificate.
CERTIFICATE_NAMES = "orchid.certificate"
_access = logging.getLogger("controlplane.http.access")

DEADLINE = "x-orchid-deadline-ms"
TENANT = "x-orchid-tenant"
REQUEST_CLASS = "x-orchid-request-class"
PRIVACY_CLASS = "x-orchid-privacy-class"
REQUEST_ID = "x-request-id"
TRACEPARENT = "traceparent"
AUTHORIZATION = "authorization"
# Where a recorded call's caller is told the trace.
TRACE_ID = b"x-orchid-trace-id"
# What OpenAI's clients say of their own patience, in seconds between two reads.
_PATIENCE = "x-stainless-read-timeout"
_USUAL_ID = re.compile(r"[\w.:/+=-]{1,128}", re.ASCII)
_EVENTS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    # Proxies that gather an answer before they pass it on would undo the streaming.
    "x-accel-buffering": "no",
}
_SHUTDOWN_RETRY_MS = 1000
_NO_HEADERS: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Settings:
    """`max_body` in bytes; `body_timeout_s` bounds how long a body may take to come.

    `telemetry` says which calls are recorded; None: none of them.
    """

    max_body: int
    body_timeout_s: float
    now_ns: Callable[[], int]
    wall_s: Callable[[], int]
    new_id: Callable[[], str]
    guard: Guard | None = None
    telemetry: Telemetry | None = None


class Call:
    """What a handler knows of its caller."""

    def __init__(self, scope: Scope, receive: Receive, settings: Settings) -> None:
        self._receive = receive
        self._settings = settings
        self.headers = Headers(scope=scope)
        self.path_params: Mapping[str, str] = scope.get("path_params", {})
        self.arrived_ns = settings.now_ns()
        self._client: tuple[str, int] = scope.get("client") or ("", 0)
        self.identity: Identity | None = None
        given = self.headers.get(REQUEST_ID, "")
        self.id = given if _USUAL_ID.fullmatch(given) else settings.new_id()

    @property
    def now_ns(self) -> int:
        """The clock of every time of a call."""
        return self._settings.now_ns()

    @property
    def wall_s(self) -> int:
        """The date, in seconds since 1970, for callers to see."""
        return self._settings.wall_s()

    @property
    def peer(self) -> str:
        """Where it comes from, for the audit log."""
        return f"{self._client[0]}:{self._client[1]}"

    def deadline_ns(self) -> int:
        """The deadline header as time from the arrival, 0 without one.

        InvalidField when it is no number of milliseconds, TooLate when it has passed.
        """
        text = self.headers.get(DEADLINE)
        if text is None:
            return 0
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if value < 0:
            raise TooLate(f"{DEADLINE} is {value:g}: the deadline had passed when the call came")
        if not value <= MAX_DEADLINE_MS:
            raise InvalidField(DEADLINE, f"must be milliseconds, at most {MAX_DEADLINE_MS}")
        return max(1, int(value * 1e6)) if value else 0

    def time_remaining(self) -> float | None:
        """Seconds until the deadline that the call itself has, None without one."""
        deadline = self.deadline_ns()
        return (self.arrived_ns + deadline - self.now_ns) / 1e9 if deadline else None

    def patience_ns(self) -> int:
        """How long the caller's client waits for a whole answer, 0 when it does not say."""
        try:
            seconds = float(self.headers.get(_PATIENCE, "0"))
        except ValueError:
            return 0
        return max(1, int(seconds * 1e9)) if 0 < seconds * 1000 <= MAX_DEADLINE_MS else 0

    async def body(self) -> bytes:
        """The whole body.

        Raises TooLarge over the message limit, NotReceived when it takes too long to come,
        UnsupportedCoding for a compressed one, Cancelled when the caller went away.
        """
        coding = self.headers.get("content-encoding", "identity")
        if coding.lower() != "identity":
            raise UnsupportedCoding("content-encoding: a body is read only as it is, not encoded")
        limit = self._settings.max_body
        declared = self.headers.get("content-length", "")
        if declared.isdecimal() and int(declared) > limit:
            raise _too_large(limit)
        chunks: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(self._settings.body_timeout_s):
                while True:
                    message = await self._receive()
                    if message["type"] == "http.disconnect":
                        raise Cancelled("the caller went away")
                    chunk = message.get("body", b"")
                    size += len(chunk)
                    if size > limit:
                        raise _too_large(limit)
                    chunks.append(chunk)
                    if not message.get("more_body", False):
                        return b"".join(chunks)
        except TimeoutError:
            seconds = self._settings.body_timeout_s
            raise NotReceived(f"the body did not come within {seconds:g} s") from None


def _too_large(limit: int) -> TooLarge:
    return TooLarge(f"the body is larger than {limit} bytes, the message limit")


Handler = Callable[[Call, bytes, "Answer"], Awaitable[None]]


class Endpoint:
    """A handler as an ASGI application that always ends with a status.

    `route` names it in the log, `reads` says whether calls have a body, and `accepted` which roles
    may call where identities are known. When the caller goes away the handler is cancelled at once,
    and with it what it asked for. `span` names what records a call, empty for calls that are never
    recorded; `form` writes the body of an error.
    """

    def __init__(
        self,
        route: str,
        handler: Handler,
        settings: Settings,
        *,
        accepted: frozenset[str],
        reads: bool = False,
        span: str = "",
        form: ErrorForm = Problem.body,
    ) -> None:
        self._route = route
        self._handler = handler
        self._settings = settings
        self._reads = reads
        self._accepted = accepted
        self._span = span
        self._form = form

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one call."""
        call = Call(scope, receive, self._settings)
        trace = self._begin(call)
        answer = Answer(call.id, send, trace, self._form)
        try:
            await self._serve(call, answer, scope, receive, trace)
        finally:
            if trace is not None:
                self._finish(trace, answer.status, call.now_ns)
        if _access.isEnabledFor(logging.DEBUG):
            took_ms = (call.now_ns - call.arrived_ns) / 1e6
            what = scope["method"], self._route, answer.status or "gone", call.id, took_ms
            _access.debug("%s %s %s %s %.1f ms", *what)

    async def _serve(
        self, call: Call, answer: Answer, scope: Scope, receive: Receive, trace: CallTrace | None
    ) -> None:
        try:
            if self._settings.guard is not None and self._accepted:
                answer.standing = self._admit(self._settings.guard, call, scope)
            async with _UntilGone(receive) as caller:
                # Two must not take messages at once: whoever listens for the end waits for it.
                body = await call.body() if self._reads else b""
                caller.listen()
                await self._handler(call, body, answer)
        except ControlPlaneError as error:
            _failed(trace, error)
            await answer.fail(problem_of(error))
        except asyncio.CancelledError:
            # Either the server ends its calls, or something this one waited for was ended.
            ending = Unavailable("the request was ended by the server", _SHUTDOWN_RETRY_MS)
            _failed(trace, ending)
            await answer.fail(problem_of(ending))
        except Exception as error:
            _failed(trace, error)
            log_fault(error)
            await answer.fail(problem_of(error))

    def _begin(self, call: Call) -> CallTrace | None:
        telemetry = self._settings.telemetry
        if telemetry is None or not self._span:
            return None
        header = call.headers.get(TRACEPARENT, "")
        trace = telemetry.begin(self._span, header, call.arrived_ns)
        if trace is not None:
            trace.attributes["http.request.method"] = "POST" if self._reads else "GET"
            trace.attributes["http.route"] = self._route
        CURRENT.set(trace)
        return trace

    def _finish(self, trace: CallTrace, status: int, now_ns: int) -> None:
        if status:
            trace.attributes["http.response.status_code"] = status
        else:
            trace.failed("cancelled")
        if self._settings.telemetry is not None:
            self._settings.telemetry.finish(trace, now_ns)

    def _admit(self, guard: Guard, call: Call, scope: Scope) -> Standing:
        ask = partial(
            guard.admit,
            self._route,
            self._accepted,
            call.headers.get(AUTHORIZATION, ""),
            lambda: scope.get(CERTIFICATE_NAMES, ()),
            call.peer,
        )
        standing = Standing(guard, ask)
        call.identity = standing.identity
        # Looking around and operating are no requests, over gRPC neither.
        if self._accepted is INFER:
            guard.spend(call.identity)
        return standing


def _failed(trace: CallTrace | None, error: Exception) -> None:
    if trace is not None:
        trace.failed(ends.word_of(error))


class _UntilGone:
    """Cancels the task inside it when the caller goes away, and takes that cancel back."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._task: asyncio.Task[object] | None = None
        self._listener: asyncio.Task[None] | None = None
        self._gone = False

    def listen(self) -> None:
        """Begin to listen; nobody else may take messages from now on."""
        self._listener = asyncio.create_task(self._listen())

    async def __aenter__(self) -> _UntilGone:
        self._task = asyncio.current_task()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if self._listener is not None:
            self._listener.cancel()
        if not self._gone or self._task is None:
            return False
        rest = self._task.uncancel()
        return rest == 0 and kind is not None and issubclass(kind, asyncio.CancelledError)

    async def _listen(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        if self._task is not None:
            self._gone = True
            self._task.cancel()


class Answer:
    """The one answer to a call: `whole`, or `begin`, pieces and `end`; else `fail`.

    `status` is 0 until it has begun. With a `standing` an answer in pieces ends once its caller is
    known no more.
    """

    def __init__(
        self,
        call_id: str,
        send: Send,
        trace: CallTrace | None = None,
        form: ErrorForm = Problem.body,
    ) -> None:
        self._pairs = [(b"x-request-id", call_id.encode())]
        if trace is not None and trace.recording:
            self._pairs.append((TRACE_ID, trace.id.encode()))
        self._send = send
        self._form = form
        self.status = 0
        self.standing: Standing | None = None
        self._open = False

    async def whole(
        self, body: bytes, headers: Mapping[str, str] = _NO_HEADERS, status: int = 200
    ) -> None:
        """An answer that is ready, in JSON."""
        length = str(len(body))
        fixed = {"content-type": "application/json", "content-length": length}
        await self._start(status, {**fixed, **headers})
        await self._body(body, more=False)

    async def begin(self, headers: Mapping[str, str]) -> None:
        """An answer in server-sent events begins."""
        await self._start(200, {**_EVENTS, **headers})
        self._open = True

    async def piece(self, piece: bytes) -> None:
        """Whole events; waits while the caller has no room for them.

        Raises Unauthenticated or Forbidden when the caller may have no more.
        """
        if self.standing is not None:
            self.standing.check()
        await self._body(piece, more=True)

    def abandon(self) -> None:
        """The caller reads nothing any more: whatever else is said would wait for it, too."""
        self._open = False

    async def end(self) -> None:
        """The last event was sent."""
        self._open = False
        await self._body(b"", more=False)

    async def fail(self, problem: Problem) -> None:
        """Say why there is no answer, or no more of it."""
        if not self.status:
            await self.whole(self._form(problem), problem.headers(), problem.status)
        elif self._open:
            await self._body(event(self._form(problem)), more=False)

    async def _start(self, status: int, headers: Mapping[str, str]) -> None:
        self.status = status
        pairs = [*self._pairs]
        pairs += [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": pairs})

    async def _body(self, body: bytes, *, more: bool) -> None:
        await self._send({"type": "http.response.body", "body": body, "more_body": more})


def event(data: bytes) -> bytes:
    """One server-sent event; JSON on one line is its data as it is."""
    return b"data: " + data + b"\n\n"
