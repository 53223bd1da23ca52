"""Spans of sampled requests: one from arrival to answer, with the decision on it."""

from __future__ import annotations

from collections.abc import Mapping

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Span, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import SpanKind, Status, StatusCode, format_span_id, format_trace_id
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from controlplane.config import TelemetryConfig

AttributeValue = str | bool | int | float
_PROPAGATOR = TraceContextTextMapPropagator()


class Telemetry:
    """Makes request spans; costs nothing for requests that are not sampled.

    `epoch_offset_ns` turns the process's monotonic clock into wall-clock time, which
    spans need. `exporter` replaces the OTLP exporter of the configured endpoint.
    """

    def __init__(
        self,
        config: TelemetryConfig,
        *,
        epoch_offset_ns: int,
        exporter: SpanExporter | None = None,
    ) -> None:
        self._offset_ns = epoch_offset_ns
        self._roots = config.sample_ratio > 0.0
        if exporter is None and config.otlp_endpoint:
            exporter = OTLPSpanExporter(endpoint=config.otlp_endpoint, insecure=True)
        self._provider: TracerProvider | None = None
        if exporter is None:
            return
        self._provider = TracerProvider(
            sampler=ParentBased(TraceIdRatioBased(config.sample_ratio)),
            resource=Resource.create({"service.name": config.service_name}),
        )
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("orchid.controlplane")

    def start(self, traceparent: str, arrived_ns: int, name: str = "orchid.request") -> Span | None:
        """The request's span, from its arrival on; None when it is not sampled."""
        if self._provider is None or not (self._roots or is_sampled(traceparent)):
            return None
        parent = _PROPAGATOR.extract({"traceparent": traceparent}) if traceparent else None
        span = self._tracer.start_span(
            name,
            context=parent,
            kind=SpanKind.SERVER,
            start_time=arrived_ns + self._offset_ns,
        )
        return span if isinstance(span, Span) and span.is_recording() else None

    def finish(
        self, span: Span, ended_ns: int, attributes: Mapping[str, AttributeValue], fault: str = ""
    ) -> None:
        """Close a span with the decision's attributes; `fault` is why there is no answer."""
        span.set_attributes(attributes)
        if fault:
            span.set_status(Status(StatusCode.ERROR, fault))
        span.end(end_time=ended_ns + self._offset_ns)

    def close(self) -> None:
        """Send what is left and stop."""
        if self._provider is not None:
            self._provider.shutdown()


def is_sampled(traceparent: str) -> bool:
    """True when a W3C traceparent carries the sampled flag."""
    parts = traceparent.split("-")
    if len(parts) != 4 or len(parts[3]) != 2:
        return False
    try:
        return bool(int(parts[3], 16) & 1)
    except ValueError:
        return False


def traceparent_of(span: Span) -> str:
    """The W3C traceparent under which a worker joins this span."""
    context = span.get_span_context()
    trace, parent = format_trace_id(context.trace_id), format_span_id(context.span_id)
    return f"00-{trace}-{parent}-{int(context.trace_flags):02x}"
