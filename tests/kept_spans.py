"""Spans kept in memory, and telemetry that records into them."""

from __future__ import annotations

from typing import Any

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from controlplane.config import TelemetryConfig
from controlplane.telemetry.telemetry import Telemetry
from protos.tracing.spans import SpanSink

TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED = f"00-{TRACE}-{CALLER}-01"
UNSAMPLED = f"00-{TRACE}-{CALLER}-00"
ASKED = (("traceparent", SAMPLED),)


class KeptSpans:
    """A sink and what it was given; `offset_ns` is added to every time."""

    def __init__(self, offset_ns: int = 0) -> None:
        self.exporter = InMemorySpanExporter()
        processor = SimpleSpanProcessor(self.exporter)
        self.sink = SpanSink(
            (processor,), resource={"service.name": "test"}, scope="test", wall_offset_ns=offset_ns
        )

    def telemetry(self, **config: Any) -> Telemetry:
        """Telemetry into this sink; nothing slow is kept unless the test says so."""
        settings = TelemetryConfig(**{"slow_per_s": 0.0, **config})
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
