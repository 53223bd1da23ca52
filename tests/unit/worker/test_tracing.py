"""Spans of executed items and of generations: whose trace, which times, how many."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind

from tests.kept_spans import (
    CALLER,
    SAMPLED,
    TRACE,
    UNSAMPLED,
    KeptSpans,
    id_of,
    parent_of,
    said,
    trace_of,
)
from worker.errors import InvalidInput
from worker.generation.records import Admitted, Failed, GenerationCall, GenerationEvent, Usage
from worker.generation.trace import (
    MOST_CHUNKS,
    MOST_PREEMPTIONS,
    MOST_STEPS,
    Chunk,
    GenerationTrace,
)
from worker.records import Batch, BatchOutcome, Item, ItemOutcome
from worker.tracing import Tracing

OTHER = "00-11111111111111111111111111111111-2222222222222222-01"


def outcome(*traceparents: str) -> BatchOutcome:
    items = tuple(
        Item(number, 10**12, np.ones(4, np.int32), (1, 3), traceparent=traceparent)
        for number, traceparent in enumerate(traceparents)
    )
    results: tuple[ItemOutcome, ...] = ({}, InvalidInput("no"), {}, {}, {})[: len(items)]
    return BatchOutcome(
        Batch(1, "tiny", "tiny-a", items, 5_000), results, 9_000, 20_000, 8_000, 8, 2
    )


def edges(span: ReadableSpan) -> tuple[int, int]:
    assert span.start_time is not None and span.end_time is not None
    return span.start_time, span.end_time


def test_a_recorded_item_is_a_tree_in_its_callers_trace() -> None:
    kept = KeptSpans(offset_ns=1_000_000)
    Tracing(kept.sink).record(outcome(SAMPLED, "", UNSAMPLED, "nonsense"), lambda: 30_000)
    root, queue, run, respond = kept.all
    assert (trace_of(root), parent_of(root)) == (TRACE, CALLER)
    assert root.name == "worker.execute" and root.kind is SpanKind.SERVER
    assert edges(root) == (1_005_000, 1_030_000)
    assert {parent_of(span) for span in (queue, run, respond)} == {id_of(root)}
    assert edges(queue) == (1_005_000, 1_009_000)
    assert edges(run) == (1_009_000, 1_020_000)
    assert edges(respond) == (1_020_000, 1_030_000)
    assert said(root) == {
        "orchid.model": "tiny",
        "orchid.variant": "tiny-a",
        "orchid.tokens": 4,
        "orchid.batch_id": 1,
    }
    assert said(run)["orchid.batch_items"] == 2 and said(run)["orchid.batch_tokens"] == 8
    assert not run.links


def test_the_runs_of_one_batch_are_linked_to_each_other() -> None:
    kept = KeptSpans()
    Tracing(kept.sink).record(outcome(SAMPLED, OTHER, ""), lambda: 30_000)
    mine, theirs = kept.named("worker.run")
    assert [f"{link.context.span_id:016x}" for link in mine.links] == ["2222222222222222"]
    assert [f"{link.context.trace_id:032x}" for link in theirs.links] == [TRACE]
    assert kept.named("worker.execute")[1].status.description == "InvalidInput"


def test_what_never_ran_has_no_run() -> None:
    kept = KeptSpans()
    ended = replace(outcome(SAMPLED), started_ns=9_000, ended_ns=9_000, executed_items=0)
    Tracing(kept.sink).record(ended, lambda: 9_500)
    assert [span.name for span in kept.all] == ["worker.execute", "worker.queue", "worker.respond"]


def call(traceparent: str = SAMPLED) -> GenerationCall:
    return GenerationCall(1, "chat", "chat-q4", (5, 6, 7), 5_000, traceparent=traceparent)


def trace_of_three() -> GenerationTrace:
    trace = GenerationTrace()
    trace.admitted_ns = 6_000
    trace.read(Chunk(6_000, 10_000, 3_500, 2, 0, 4))
    trace.preempted(11_000)
    trace.read(Chunk(12_000, 20_000, 7_000, 1, 2, 4))
    trace.first_token_ns = 20_000
    trace.wrote(30_000, 9_000, 3)
    trace.wrote(41_000, 9_500, 2)
    return trace


USAGE = Usage(3, 2, 3, 1_000, 15_000, 90_000, 3_000, 4_000, 6_000, 7_000, 100, 1)


def recorded(last: GenerationEvent | None, trace: GenerationTrace) -> KeptSpans:
    kept = KeptSpans()
    Tracing(kept.sink).record_generation(call(), trace, last, 45_000)
    return kept


def test_a_generation_is_queue_chunks_decode_and_the_way_out() -> None:
    kept = recorded(USAGE, trace_of_three())
    root = kept.one("worker.generate")
    assert (trace_of(root), parent_of(root)) == (TRACE, CALLER)
    assert edges(root) == (5_000, 45_000) and root.status.is_unset
    assert [event.name for event in root.events] == ["preempted", "first_token"]
    assert edges(kept.one("worker.queue")) == (5_000, 6_000)
    first, second = kept.named("worker.prefill")
    assert edges(first) == (6_000, 10_000) and edges(second) == (12_000, 20_000)
    assert said(first)["orchid.tokens"] == 2 and said(second)["orchid.past"] == 2
    decode = kept.one("worker.decode")
    assert edges(decode) == (20_000, 41_000)
    assert said(decode)["orchid.steps"] == 2
    assert [event.timestamp for event in decode.events] == [30_000, 41_000]
    assert edges(kept.one("worker.respond")) == (41_000, 45_000)
    assert said(root)["orchid.generated_tokens"] == 3


def test_waiting_for_a_place_that_was_given_up_is_a_span() -> None:
    again = recorded(USAGE, trace_of_three()).one("worker.preempted")
    assert edges(again) == (11_000, 12_000)
    # It ended before it was read again.
    gone = trace_of_three()
    gone.preempted(42_000)
    spans = recorded(None, gone).named("worker.preempted")
    assert [edges(span) for span in spans] == [(11_000, 12_000), (42_000, 45_000)]
    # Another of its answers went on.
    other = trace_of_three()
    other.preempted(35_000)
    assert len(recorded(USAGE, other).named("worker.preempted")) == 1


def test_generations_that_end_otherwise_say_how() -> None:
    failed = recorded(Failed(InvalidInput("the secret")), GenerationTrace())
    root = failed.one("worker.generate")
    assert root.status.description == "InvalidInput"
    assert edges(failed.one("worker.queue")) == (5_000, 45_000)
    cut = recorded(Admitted(3, 0, 1), trace_of_three()).one("worker.generate")
    assert cut.status.description == "Cancelled"
    assert "cancelled" in [event.name for event in cut.events]


def test_the_account_of_a_long_generation_is_bounded_and_even() -> None:
    trace = GenerationTrace()
    for number in range(1000):
        trace.read(Chunk(number, number + 1, 1, 10, number * 10, 1))
        trace.preempted(number)
    for number in range(1, 10_001):
        trace.wrote(number, 1, 1)
    assert len(trace.chunks) == MOST_CHUNKS
    assert sum(chunk.tokens for chunk in trace.chunks) == 10_000
    assert sum(chunk.steps for chunk in trace.chunks) == 1000
    assert trace.chunks[-1].ended_ns == 1000
    assert len(trace.preempted_ns) == MOST_PREEMPTIONS and trace.preemptions == 1000
    numbers = [step.number for step in trace.steps]
    assert MOST_STEPS // 2 <= len(numbers) <= MOST_STEPS
    gaps = {later - earlier for earlier, later in itertools.pairwise(numbers)}
    assert numbers[0] == 1 and len(gaps) == 1 and numbers[-1] > 9_000
    assert trace.steps_seen == 10_000 and trace.decode_ns == 10_000


def test_a_share_is_of_traces_and_nothing_without_a_sink() -> None:
    kept = KeptSpans()
    Tracing(kept.sink, 0.0).record(outcome(SAMPLED), lambda: 1)
    assert kept.all == ()
    nowhere = Tracing(None)
    assert nowhere.asked(SAMPLED) is None
    nowhere.record(outcome(SAMPLED), lambda: 1)
    nowhere.close()
