"""Traces of gRPC calls: begun when a call's headers are there, finished when its task is over.

A handler is looked up inside the task that serves the call, before its message is read. So this
sees every call that comes, however it ends: answered, refused, cancelled, too large to be read,
or of a method that nobody has. An interceptor of grpc.aio would see no end, and would cost every
call a coroutine (docs/decisions/0059-traces-of-calls.md).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import grpc
from google.protobuf.descriptor import ServiceDescriptor

from controlplane.telemetry.telemetry import STREAM, Telemetry
from controlplane.telemetry.timeline import GENERATION, REQUEST
from controlplane.telemetry.trace import CURRENT, CallTrace
from protos.tracing.context import TRACEPARENT

CALL = "orchid.call"
_ENCODING = frozenset(("Infer", "ModelInfer"))
# Where a recorded call's caller is told the trace, in trailing metadata.
TRACE_ID = "orchid-trace-id"


class TracedHandlers(grpc.GenericRpcHandler):
    """The handlers of one service, each call of which may be recorded."""

    def __init__(
        self,
        service: ServiceDescriptor,
        handlers: grpc.GenericRpcHandler,
        telemetry: Telemetry,
        now_ns: Callable[[], int],
    ) -> None:
        self._handlers = handlers
        self._telemetry = telemetry
        self._now_ns = now_ns
        self._names: dict[str, str] = {}
        self._attributes: dict[str, Mapping[str, str]] = {}
        for method in service.methods:
            path = f"/{service.full_name}/{method.name}"
            self._names[path] = _span_name(method)
            self._attributes[path] = {
                "rpc.system": "grpc",
                "rpc.service": service.full_name,
                "rpc.method": method.name,
            }

    def service(self, handler_call_details: Any) -> Any:
        """The handler of a call; None when it is not of this service."""
        handler = self._handlers.service(handler_call_details)
        if handler is None:
            return None
        path = handler_call_details.method
        name = self._names[path]
        trace = self._telemetry.begin(
            name,
            traceparent_of(handler_call_details.invocation_metadata),
            self._now_ns(),
            head=name in (REQUEST, GENERATION),
        )
        if trace is not None:
            trace.attributes.update(self._attributes[path])
            _follow(trace, self._telemetry, self._now_ns)
        return handler


class UnknownMethods(grpc.GenericRpcHandler):
    """Comes last: records calls of methods that nobody has, which the transport refuses."""

    def __init__(self, telemetry: Telemetry, now_ns: Callable[[], int]) -> None:
        self._telemetry = telemetry
        self._now_ns = now_ns

    def service(self, handler_call_details: Any) -> None:
        """None, always."""
        header = traceparent_of(handler_call_details.invocation_metadata)
        trace = self._telemetry.begin(CALL, header, self._now_ns(), head=False)
        if trace is not None:
            # What the caller named is his own text, and not ours to record.
            trace.failed("unimplemented")
            trace.handled = True
            _follow(trace, self._telemetry, self._now_ns)


def traceparent_of(metadata: Iterable[tuple[str, str | bytes]] | None) -> str:
    """The caller's W3C trace context; empty when it sent none."""
    for key, value in metadata or ():
        if key == TRACEPARENT and isinstance(value, str):
            return value
    return ""


def _span_name(method: Any) -> str:
    if method.client_streaming:
        return STREAM
    if method.server_streaming:
        return GENERATION
    return REQUEST if method.name in _ENCODING else CALL


def _follow(trace: CallTrace, telemetry: Telemetry, now_ns: Callable[[], int]) -> None:
    """Makes the trace that of the running task, and its end the task's."""
    CURRENT.set(trace)
    task = asyncio.current_task()
    assert task is not None, "the transport serves every call in a task"

    def ended(_: asyncio.Task[Any]) -> None:
        if not trace.handled:
            # Cancelled before its message was there, or too large to be read.
            trace.failed("not-received")
        telemetry.finish(trace, now_ns())

    task.add_done_callback(ended)
