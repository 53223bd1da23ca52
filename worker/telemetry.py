"""Spans of executed items and the process's log; neither ever holds content."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased, TraceIdRatioBased
from opentelemetry.trace import SpanKind, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from worker.errors import WorkerError
from worker.generation.records import Failed, GenerationCall, GenerationEvent, Usage
from worker.records import BatchOutcome
from worker.refusals import Cancelled

_SAMPLED = 0x01
_SPAN = "worker.execute"
_GENERATION_SPAN = "worker.generate"
# A collector that is gone must not hold up the end of the process.
_EXPORT_TIMEOUT_S = 1.0


@dataclass(frozen=True, slots=True)
class Tracing:
    """Where spans go, if anywhere; `wall_offset_ns` turns monotonic times into wall-clock ones."""

    tracer: Tracer | None
    wall_offset_ns: int
    shutdown: Callable[[], None]

    def record(self, outcome: BatchOutcome) -> None:
        """Makes one span for each item whose caller is sampled, joined to the caller's trace."""
        if self.tracer is None:
            return
        batch = outcome.batch
        for item, result in zip(batch.items, outcome.outcomes, strict=True):
            if not is_sampled(item.traceparent):
                continue
            span = self.tracer.start_span(
                _SPAN,
                context=TraceContextTextMapPropagator().extract({"traceparent": item.traceparent}),
                kind=SpanKind.SERVER,
                start_time=batch.arrived_ns + self.wall_offset_ns,
                attributes={
                    "orchid.model": batch.model,
                    "orchid.variant": batch.variant,
                    "orchid.tokens": sum(item.lengths),
                    "orchid.batch_items": outcome.executed_items,
                    "orchid.batch_tokens": outcome.tokens,
                    "orchid.queue_us": outcome.queue_ns // 1000,
                    "orchid.run_us": outcome.run_ns // 1000,
                    "orchid.cpu_us": outcome.cpu_ns // 1000,
                },
            )
            if isinstance(result, WorkerError):
                span.set_status(StatusCode.ERROR, type(result).__name__)
            span.end(end_time=outcome.ended_ns + self.wall_offset_ns)

    def record_generation(
        self, call: GenerationCall, last: GenerationEvent | None, ended_ns: int
    ) -> None:
        """Makes the span of a generation whose caller is sampled; `last` is how it ended."""
        if self.tracer is None or not is_sampled(call.traceparent):
            return
        span = self.tracer.start_span(
            _GENERATION_SPAN,
            context=TraceContextTextMapPropagator().extract({"traceparent": call.traceparent}),
            kind=SpanKind.SERVER,
            start_time=call.arrived_ns + self.wall_offset_ns,
            attributes={
                "orchid.model": call.model,
                "orchid.variant": call.variant,
                "orchid.tokens": len(call.prompt),
                "orchid.answers": call.limits.answers,
            },
        )
        if isinstance(last, Usage):
            span.set_attributes(
                {
                    "orchid.cached_tokens": last.cached_tokens,
                    "orchid.generated_tokens": last.generated_tokens,
                    "orchid.queue_us": last.queue_ns // 1000,
                    "orchid.first_token_us": last.first_token_ns // 1000,
                    "orchid.mean_gap_us": last.mean_gap_ns // 1000,
                    "orchid.prefill_cpu_us": last.prefill_cpu_ns // 1000,
                    "orchid.decode_cpu_us": last.decode_cpu_ns // 1000,
                    "orchid.preemptions": last.preemptions,
                }
            )
        else:
            error = last.error if isinstance(last, Failed) else Cancelled()
            span.set_status(StatusCode.ERROR, type(error).__name__)
        span.end(end_time=ended_ns + self.wall_offset_ns)


def start_tracing(endpoint: str, worker_id: str, share: float, wall_offset_ns: int) -> Tracing:
    """Exports to an OTLP gRPC endpoint (`host:port`); without one there are no spans at all."""
    if not endpoint:
        return Tracing(None, wall_offset_ns, lambda: None)
    exporter = OTLPSpanExporter(
        endpoint=endpoint, insecure=not endpoint.startswith("https://"), timeout=_EXPORT_TIMEOUT_S
    )
    return tracing_through(BatchSpanProcessor(exporter), worker_id, share, wall_offset_ns)


def tracing_through(
    processor: SpanProcessor, worker_id: str, share: float, wall_offset_ns: int
) -> Tracing:
    """Spans of a share (0 to 1) of the sampled callers, handed to a processor."""
    resource = Resource.create({"service.name": "orchid-worker", "service.instance.id": worker_id})
    sampler = ParentBased(root=ALWAYS_OFF, remote_parent_sampled=TraceIdRatioBased(share))
    provider = TracerProvider(sampler=sampler, resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(processor)
    return Tracing(provider.get_tracer("orchid.worker"), wall_offset_ns, provider.shutdown)


def is_sampled(traceparent: str) -> bool:
    """Whether a W3C trace context asks to be recorded; malformed ones do not."""
    if len(traceparent) < 55:
        return False
    try:
        return bool(int(traceparent[53:55], 16) & _SAMPLED)
    except ValueError:
        return False


class _JsonFormatter(logging.Formatter):
    def __init__(self, worker_id: str) -> None:
        super().__init__()
        self._worker_id = worker_id

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": self.formatTime(record),
            "level": record.levelname.lower(),
            "worker": self._worker_id,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def start_logging(level: str, style: str, worker_id: str) -> None:
    """Logs to standard error: `text` is one line a record, `json` one object a record."""
    handler = logging.StreamHandler(sys.stderr)
    if style == "json":
        handler.setFormatter(_JsonFormatter(worker_id))
    else:
        template = f"%(asctime)s %(levelname)s worker={worker_id} %(name)s: %(message)s"
        handler.setFormatter(logging.Formatter(template))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
