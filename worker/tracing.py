"""Spans of executed items and of generations, made from recorded times once these have ended."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from protos.tracing.context import TraceContext, in_share, read_traceparent, trace_bound
from protos.tracing.export import Destinations, open_sink
from protos.tracing.spans import (
    NO_ATTRIBUTES,
    Attributes,
    AttributeValue,
    Kind,
    SpanEvent,
    SpanRecord,
    SpanSink,
    new_span_id,
)
from worker.config import WorkerConfig
from worker.errors import WorkerError
from worker.generation.records import Failed, GenerationCall, GenerationEvent, Usage
from worker.generation.trace import GenerationTrace
from worker.records import BatchOutcome, Item
from worker.refusals import Cancelled

EXECUTE = "worker.execute"
GENERATE = "worker.generate"
QUEUE = "worker.queue"
RUN = "worker.run"
PREFILL = "worker.prefill"
PREEMPTED = "worker.preempted"
DECODE = "worker.decode"
RESPOND = "worker.respond"


class Tracing:
    """Records what callers ask to have recorded; `share` (0 to 1) of that. `sink` None: nothing.

    Lives on the event loop.
    """

    def __init__(self, sink: SpanSink | None, share: float = 1.0) -> None:
        self._sink = sink
        self._bound = trace_bound(share)

    def asked(self, traceparent: str) -> TraceContext | None:
        """Whose span to join; None when nothing is to be recorded."""
        if self._sink is None or not traceparent:
            return None
        context = read_traceparent(traceparent)
        if context is None or not context.sampled:
            return None
        return context if in_share(context.trace_id, self._bound) else None

    def record(self, outcome: BatchOutcome, now_ns: Callable[[], int]) -> None:
        """Makes the spans of each recorded item of a batch that has just ended.

        Each joins its own caller's trace; the runs of one batch are linked to the other items.
        """
        items = outcome.batch.items
        if self._sink is None or not any(item.traceparent for item in items):
            return
        asked = [self.asked(item.traceparent) for item in items]
        if not any(asked):
            return
        ended_ns = now_ns()
        callers = [context for context in asked if context is not None]
        for item, context, result in zip(items, asked, outcome.outcomes, strict=True):
            if context is not None:
                fault = type(result).__name__ if isinstance(result, WorkerError) else ""
                links = [(c.trace_id, c.span_id) for c in callers if c is not context]
                self._sink.emit(_item_spans(outcome, item, context, links, fault, ended_ns))

    def record_generation(
        self,
        call: GenerationCall,
        trace: GenerationTrace,
        last: GenerationEvent | None,
        ended_ns: int,
    ) -> None:
        """Makes the spans of a generation; `last` is how it ended, None or no end: cancelled."""
        context = self.asked(call.traceparent)
        if self._sink is not None and context is not None:
            self._sink.emit(_generation_spans(call, trace, last, context, ended_ns))

    def close(self) -> None:
        """Send what is left and stop."""
        if self._sink is not None:
            self._sink.close()


class _Spans:
    """A root that joins its caller's span, and its parts."""

    def __init__(self, context: TraceContext) -> None:
        self._context = context
        self._root_id = new_span_id()
        self.records: list[SpanRecord] = []

    def root(
        self,
        name: str,
        begun_ns: int,
        ended_ns: int,
        attributes: Attributes,
        events: list[SpanEvent],
        fault: str,
    ) -> None:
        self.records.append(
            SpanRecord(
                name,
                self._context.trace_id,
                self._root_id,
                self._context.span_id,
                begun_ns,
                ended_ns,
                Kind.SERVER,
                attributes,
                events,
                fault=fault,
            )
        )

    def part(
        self,
        name: str,
        begun_ns: int,
        ended_ns: int,
        attributes: Attributes = NO_ATTRIBUTES,
        *,
        events: list[SpanEvent] | None = None,
        links: list[tuple[int, int]] | None = None,
    ) -> None:
        self.records.append(
            SpanRecord(
                name,
                self._context.trace_id,
                new_span_id(),
                self._root_id,
                begun_ns,
                max(begun_ns, ended_ns),
                attributes=attributes,
                events=events or (),
                links=links or (),
            )
        )


def _item_spans(
    outcome: BatchOutcome,
    item: Item,
    context: TraceContext,
    links: list[tuple[int, int]],
    fault: str,
    ended_ns: int,
) -> list[SpanRecord]:
    batch = outcome.batch
    spans = _Spans(context)
    attributes: dict[str, AttributeValue] = {
        "orchid.model": batch.model,
        "orchid.variant": batch.variant,
        "orchid.tokens": sum(item.lengths),
        "orchid.batch_id": batch.batch_id,
    }
    spans.root(EXECUTE, batch.arrived_ns, ended_ns, attributes, [], fault)
    spans.part(QUEUE, batch.arrived_ns, outcome.started_ns)
    if outcome.ended_ns > outcome.started_ns:
        run: dict[str, AttributeValue] = {
            "orchid.variant": batch.variant,
            "orchid.batch_items": outcome.executed_items,
            "orchid.batch_tokens": outcome.tokens,
            "orchid.cpu_us": outcome.cpu_ns // 1000,
        }
        spans.part(RUN, outcome.started_ns, outcome.ended_ns, run, links=links)
    spans.part(RESPOND, outcome.ended_ns, ended_ns)
    return spans.records


def _generation_spans(
    call: GenerationCall,
    trace: GenerationTrace,
    last: GenerationEvent | None,
    context: TraceContext,
    ended_ns: int,
) -> list[SpanRecord]:
    spans = _Spans(context)
    attributes: dict[str, AttributeValue] = {
        "orchid.model": call.model,
        "orchid.variant": call.variant,
        "orchid.tokens": len(call.prompt),
        "orchid.answers": call.limits.answers,
    }
    events = [SpanEvent("preempted", at) for at in trace.preempted_ns]
    fault = ""
    if isinstance(last, Usage):
        attributes |= _usage_attributes(last)
    else:
        fault = type(last.error if isinstance(last, Failed) else Cancelled()).__name__
        events.append(SpanEvent(fault.lower(), ended_ns))
    if trace.first_token_ns:
        events.append(SpanEvent("first_token", trace.first_token_ns))
    events.sort(key=lambda event: event.at_ns)
    spans.root(GENERATE, call.arrived_ns, ended_ns, attributes, events, fault)
    spans.part(QUEUE, call.arrived_ns, trace.admitted_ns or ended_ns)
    for chunk in tuple(trace.chunks):
        spans.part(
            PREFILL,
            chunk.begun_ns,
            chunk.ended_ns,
            {
                "orchid.tokens": chunk.tokens,
                "orchid.past": chunk.past,
                "orchid.sequences": chunk.sequences,
                "orchid.run_us": chunk.run_ns // 1000,
                "orchid.chunks": chunk.steps,
            },
        )
    for gone_ns, again_ns in trace.away(ended_ns):
        spans.part(PREEMPTED, gone_ns, again_ns)
    said_ns = trace.last_step_ns
    if trace.steps_seen:
        steps = [
            SpanEvent(
                "step",
                step.ended_ns,
                {
                    "orchid.step": step.number,
                    "orchid.run_us": step.run_ns // 1000,
                    "orchid.sequences": step.sequences,
                },
            )
            for step in tuple(trace.steps)
        ]
        spans.part(
            DECODE,
            trace.first_token_ns or said_ns,
            said_ns,
            {"orchid.steps": trace.steps_seen, "orchid.run_us": trace.decode_ns // 1000},
            events=steps,
        )
    if said_ns:
        spans.part(RESPOND, said_ns, ended_ns)
    return spans.records


def _usage_attributes(usage: Usage) -> dict[str, AttributeValue]:
    return {
        "orchid.cached_tokens": usage.cached_tokens,
        "orchid.generated_tokens": usage.generated_tokens,
        "orchid.queue_us": usage.queue_ns // 1000,
        "orchid.first_token_us": usage.first_token_ns // 1000,
        "orchid.mean_gap_us": usage.mean_gap_ns // 1000,
        "orchid.max_gap_us": usage.max_gap_ns // 1000,
        "orchid.prefill_cpu_us": usage.prefill_cpu_ns // 1000,
        "orchid.decode_cpu_us": usage.decode_cpu_ns // 1000,
        "orchid.preemptions": usage.preemptions,
    }


def start_tracing(config: WorkerConfig, worker_id: str, wall_offset_ns: int) -> Tracing:
    """Records to where the configuration says; without a place there are no spans at all."""
    directory = Path(config.trace_directory) if config.trace_directory else None
    sink = open_sink(
        Destinations(config.otlp_endpoint, directory, config.trace_directory_mib << 19),
        process=worker_id,
        resource={"service.name": "orchid-worker", "service.instance.id": worker_id},
        scope="orchid.worker",
        wall_offset_ns=wall_offset_ns,
    )
    return Tracing(sink, config.trace_sample)
