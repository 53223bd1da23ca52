"""Finished spans as OTLP's messages, without a stop at OpenTelemetry's own span objects.

The way over these takes three times as long, and at saturation that is what tracing costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans, Span, Status

from protos.tracing.spans import Attributes, FinishedSpans, Origin, SpanRecord

_ERROR = Status.STATUS_CODE_ERROR


def request_of(spans: Sequence[Any]) -> ExportTraceServiceRequest:
    """The request that carries these `FinishedSpans`, by where they are of."""
    request = ExportTraceServiceRequest()
    groups: dict[int, ScopeSpans] = {}
    for ended in cast(Sequence[FinishedSpans], spans):
        origin = ended.origin
        group = groups.get(id(origin))
        if group is None:
            group = groups[id(origin)] = _group(request, origin)
        for record in ended.records:
            _fill(group.spans.add(), record, origin.wall_offset_ns)
    return request


def _group(request: ExportTraceServiceRequest, origin: Origin) -> ScopeSpans:
    of_process = request.resource_spans.add()
    _say(of_process.resource.attributes, cast(Attributes, origin.resource.attributes))
    of_scope = of_process.scope_spans.add()
    of_scope.scope.name = origin.scope
    return of_scope


def _fill(span: Span, record: SpanRecord, offset_ns: int) -> None:
    trace_id = record.trace_id.to_bytes(16, "big")
    span.trace_id = trace_id
    span.span_id = record.span_id.to_bytes(8, "big")
    if record.parent_id:
        span.parent_span_id = record.parent_id.to_bytes(8, "big")
    span.name = record.name
    span.kind = cast(Any, int(record.kind))
    span.start_time_unix_nano = record.begun_ns + offset_ns
    span.end_time_unix_nano = record.ended_ns + offset_ns
    _say(span.attributes, record.attributes)
    for event in record.events:
        added = span.events.add()
        added.name = event.name
        added.time_unix_nano = event.at_ns + offset_ns
        _say(added.attributes, event.attributes)
    for other_trace, other_span in record.links:
        span.links.add(
            trace_id=other_trace.to_bytes(16, "big"), span_id=other_span.to_bytes(8, "big")
        )
    if record.fault:
        span.status.code = _ERROR
        span.status.message = record.fault


def _say(into: Any, attributes: Attributes) -> None:
    for key, value in attributes.items():
        pair = into.add()
        pair.key = key
        # A bool is an int, too.
        if value is True or value is False:
            pair.value.bool_value = value
        elif isinstance(value, str):
            pair.value.string_value = value
        elif isinstance(value, float):
            pair.value.double_value = value
        else:
            pair.value.int_value = value
