"""Interceptors of gRPC clients: who calls, and the trace that the other side is to join.

For grpc and for grpc.aio, whatever streams on either side.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import grpc

Metadata = tuple[tuple[str, str], ...]


class CallSpan(Protocol):
    """One call that is made: `metadata` goes with it."""

    @property
    def metadata(self) -> Metadata: ...

    def stop(self) -> None:
        """It has ended now; how is told by `end`."""

    def end(self, code: str) -> None:
        """It has ended, now or when it was stopped; `code` names the failure, empty for none."""


class Recorder(Protocol):
    """Whoever makes spans of calls."""

    def begin(self, method: str) -> CallSpan | None:
        """A call of this method begins; None when it is not recorded."""


class _Details(NamedTuple):
    """What is said of a call."""

    method: Any
    timeout: Any
    metadata: Any
    credentials: Any
    wait_for_ready: Any
    compression: Any


def _with(details: Any, metadata: Metadata) -> _Details:
    return _Details(
        details.method,
        details.timeout,
        (*(details.metadata or ()), *metadata),
        details.credentials,
        details.wait_for_ready,
        details.compression,
    )


class _EveryKind(
    grpc.UnaryUnaryClientInterceptor,
    grpc.UnaryStreamClientInterceptor,
    grpc.StreamUnaryClientInterceptor,
    grpc.StreamStreamClientInterceptor,
):
    """One way for calls of all four kinds."""

    def intercept(self, continuation: Any, details: Any, request: Any) -> Any:
        """Make the call, or another one."""
        raise NotImplementedError

    def intercept_unary_unary(
        self, continuation: Any, client_call_details: Any, request: Any
    ) -> Any:
        """A unary call."""
        return self.intercept(continuation, client_call_details, request)

    def intercept_unary_stream(
        self, continuation: Any, client_call_details: Any, request: Any
    ) -> Any:
        """A call with a stream of answers."""
        return self.intercept(continuation, client_call_details, request)

    def intercept_stream_unary(
        self, continuation: Any, client_call_details: Any, request_iterator: Any
    ) -> Any:
        """A call with a stream of messages."""
        return self.intercept(continuation, client_call_details, request_iterator)

    def intercept_stream_stream(
        self, continuation: Any, client_call_details: Any, request_iterator: Any
    ) -> Any:
        """A call with streams both ways."""
        return self.intercept(continuation, client_call_details, request_iterator)


class Telling(_EveryKind):
    """Adds metadata to every call."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata

    def intercept(self, continuation: Any, details: Any, request: Any) -> Any:
        """Make the call with more metadata."""
        return continuation(_with(details, self._metadata), request)


class Tracing(_EveryKind):
    """Makes a span of every call, from when it is made until it has ended, and has it joined."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def intercept(self, continuation: Any, details: Any, request: Any) -> Any:
        """Make the call as one that is recorded."""
        span = self._recorder.begin(_name(details.method))
        if span is None:
            return continuation(details, request)
        try:
            call = continuation(_with(details, span.metadata), request)
        except BaseException:
            # The caller was interrupted while he waited.
            span.end(grpc.StatusCode.CANCELLED.name)
            raise
        call.add_done_callback(lambda ended: span.end(_code(ended.code())))
        return call


def _name(method: str | bytes) -> str:
    """The method without its service, which both protocols of calls give in full."""
    text = method.decode() if isinstance(method, bytes) else method
    return text.rpartition("/")[2]


def _code(code: grpc.StatusCode | None) -> str:
    return "" if code is None or code is grpc.StatusCode.OK else code.name


_KINDS: dict[str, Any] = {
    "intercept_unary_unary": grpc.aio.UnaryUnaryClientInterceptor,
    "intercept_unary_stream": grpc.aio.UnaryStreamClientInterceptor,
    "intercept_stream_unary": grpc.aio.StreamUnaryClientInterceptor,
    "intercept_stream_stream": grpc.aio.StreamStreamClientInterceptor,
}


def _aio(name: str, intercept: Callable[..., Any]) -> list[grpc.aio.ClientInterceptor]:
    # One class for each kind of call: the library takes an interceptor for one kind only.
    return [type(name, (kind,), {method: intercept})() for method, kind in _KINDS.items()]


def _with_aio(details: Any, metadata: Metadata) -> grpc.aio.ClientCallDetails:
    return grpc.aio.ClientCallDetails(
        method=details.method,
        timeout=details.timeout,
        metadata=grpc.aio.Metadata(*(details.metadata or ()), *metadata),
        credentials=details.credentials,
        wait_for_ready=details.wait_for_ready,
    )


def telling_aio(metadata: Metadata) -> list[grpc.aio.ClientInterceptor]:
    """`Telling` for grpc.aio."""

    async def tell(_: object, continuation: Any, details: Any, request: Any) -> Any:
        return await continuation(_with_aio(details, metadata), request)

    return _aio("Telling", tell)


def tracing_aio(recorder: Recorder) -> list[grpc.aio.ClientInterceptor]:
    """`Tracing` for grpc.aio."""
    ending: set[asyncio.Task[None]] = set()

    async def end(span: CallSpan, call: Any) -> None:
        span.end(_code(await call.code()))

    async def trace(_: object, continuation: Any, details: Any, request: Any) -> Any:
        span = recorder.begin(_name(details.method))
        if span is None:
            return await continuation(details, request)
        call = await continuation(_with_aio(details, span.metadata), request)

        def ended(_: object) -> None:
            # What became of it is told to coroutines alone.
            span.stop()
            task = asyncio.ensure_future(end(span, call))
            ending.add(task)
            task.add_done_callback(ending.discard)

        call.add_done_callback(ended)
        return call

    return _aio("Tracing", trace)
