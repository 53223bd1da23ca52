"""A collector of spans: OTLP's own service over gRPC, keeping what it gets, bytes and all."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import grpc
from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from deploy.traces.spans import Span, spans_in
from deploy.traces.tree import Trace
from tests.integration.support import wait_for

_METHOD = "Export"
_SERVICE = "opentelemetry.proto.collector.trace.v1.TraceService"


@dataclass(slots=True)
class Collector:
    """Everything that arrived at `address`."""

    address: str = ""
    raw: list[bytes] = field(default_factory=list)

    def spans(self) -> list[Span]:
        """What arrived, as the project reads it."""
        found: list[Span] = []
        for content in tuple(self.raw):
            request = ExportTraceServiceRequest.FromString(content)
            document = MessageToDict(request, use_integers_for_enums=True)
            found += [_readable(span) for span in spans_in(document)]
        return found

    def trace(self, trace_id: str, *names: str) -> Trace:
        """A trace, once spans of all these names have arrived."""

        missing = set(names)

        def here() -> bool:
            missing.difference_update(s.name for s in self.spans() if s.trace_id == trace_id)
            return not missing

        try:
            wait_for(here, f"all spans of {trace_id}")
        except AssertionError as error:
            raise AssertionError(f"{error}; missing are {sorted(missing)}") from None
        return Trace([span for span in self.spans() if span.trace_id == trace_id])


def _readable(span: Span) -> Span:
    """Protobuf's JSON has ids in base64."""

    def digits(encoded: str) -> str:
        return base64.b64decode(encoded).hex()

    return replace(
        span,
        trace_id=digits(span.trace_id),
        span_id=digits(span.span_id),
        parent_id=digits(span.parent_id),
        links=tuple((digits(trace), digits(other)) for trace, other in span.links),
    )


@contextmanager
def collecting(credentials: grpc.ServerCredentials | None = None) -> Iterator[Collector]:
    """A collector on a free port, in plain text without credentials."""
    collector = Collector()

    def export(content: bytes, _: Any) -> bytes:
        collector.raw.append(content)
        return ExportTraceServiceResponse().SerializeToString()

    # As bytes: what a secret could hide in must be what was on the wire.
    handlers: dict[str, Any] = {_METHOD: grpc.unary_unary_rpc_method_handler(export)}
    server = grpc.server(futures.ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, handlers),))
    if credentials is None:
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        port = server.add_secure_port("127.0.0.1:0", credentials)
    collector.address = f"127.0.0.1:{port}"
    server.start()
    try:
        yield collector
    finally:
        server.stop(None).wait()
