"""Spans kept in memory, and telemetry that records into them."""

from __future__ import annotations

from typing import Any

from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from controlplane.config import TelemetryConfig
from controlplane.telemetry.telemetry import Telemetry
from protos.tracing.spans import Origin, SpanRecord, SpanSink

TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED = f"00-{TRACE}-{CALLER}-01"
UNSAMPLED = f"00-{TRACE}-{CALLER}-00"
ASKED = (("traceparent", SAMPLED),)


class _Readable(SimpleSpanProcessor):
    """Gives exporters OpenTelemetry's own spans, which tests can read."""

    def on_end(self, span: Any) -> None:
        for record in span.records:
            super().on_end(readable(record, span.origin))


def readable(record: SpanRecord, origin: Origin) -> ReadableSpan:
    """A finished span as OpenTelemetry has it."""
    offset = origin.wall_offset_ns
    flags = TraceFlags(TraceFlags.SAMPLED)

    def context(trace_id: int, span_id: int) -> SpanContext:
        return SpanContext(trace_id, span_id, False, flags)

    return ReadableSpan(
        name=record.name,
        context=context(record.trace_id, record.span_id),
        parent=context(record.trace_id, record.parent_id) if record.parent_id else None,
        attributes=record.attributes,
        events=[Event(e.name, e.attributes, e.at_ns + offset) for e in record.events],
        links=[Link(context(*link)) for link in record.links],
        kind=SpanKind[record.kind.name],
        status=Status(StatusCode.ERROR, record.fault) if record.fault else Status(),
        start_time=record.begun_ns + offset,
        end_time=record.ended_ns + offset,
    )


class KeptSpans:
    """A sink and what it was given; `offset_ns` is added to every time."""

    def __init__(self, offset_ns: int = 0) -> None:
        self.exporter = InMemorySpanExporter()
        processor = _Readable(self.exporter)
        self.sink = SpanSink(
            (processor,), resource={"service.name": "test"}, scope="test", wall_offset_ns=offset_ns
        )

    def telemetry(self, **config: Any) -> Telemetry:
        """Telemetry into this sink; nothing slow is kept, no rate holds unless the test says so."""
        settings = TelemetryConfig(**{"slow_per_s": 0.0, "traces_per_s": 1e6, **config})
        return Telemetry(settings, wall_offset_ns=self.sink.wall_offset_ns, sink=self.sink)

    @property
    def all(self) -> tuple[ReadableSpan, ...]:
        """Every span, in the order of their ends."""
        return self.exporter.get_finished_spans()

    def named(self, name: str) -> list[ReadableSpan]:
        """The spans of a name."""
        return [span for span in self.all if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        """The only span of a name."""
        (span,) = self.named(name)
        return span


def trace_of(span: ReadableSpan) -> str:
    """The id of a span's trace."""
    assert span.context is not None
    return f"{span.context.trace_id:032x}"


def id_of(span: ReadableSpan) -> str:
    """A span's own id."""
    assert span.context is not None
    return f"{span.context.span_id:016x}"


def parent_of(span: ReadableSpan) -> str:
    """The id of the span it is in; empty for none."""
    return "" if span.parent is None else f"{span.parent.span_id:016x}"


def said(span: ReadableSpan) -> dict[str, Any]:
    """A span's attributes."""
    return dict(span.attributes or {})
