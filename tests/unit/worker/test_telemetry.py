from __future__ import annotations

import json
import logging
from dataclasses import replace

import numpy as np
import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from worker.errors import InvalidInput
from worker.generation.records import Admitted, Failed, GenerationCall, Usage
from worker.records import Batch, BatchOutcome, Item, ItemOutcome
from worker.telemetry import is_sampled, start_logging, start_tracing, tracing_through

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED = f"00-{TRACE}-{SPAN}-01"


def outcome(*traceparents: str) -> BatchOutcome:
    items = tuple(
        Item(number, 10**12, np.ones(4, np.int32), (1, 3), traceparent=traceparent)
        for number, traceparent in enumerate(traceparents)
    )
    results: tuple[ItemOutcome, ...] = ({}, InvalidInput("no"), {}, {}, {})[: len(items)]
    return BatchOutcome(
        Batch(1, "tiny", "tiny-a", items, 5_000), results, 9_000, 20_000, 8_000, 8, 2
    )


def test_only_sampled_items_get_a_span_joined_to_their_trace() -> None:
    exporter = InMemorySpanExporter()
    tracing = tracing_through(SimpleSpanProcessor(exporter), "w", 1.0, 1_000_000)
    tracing.record(outcome(SAMPLED, SAMPLED, "", f"00-{TRACE}-{SPAN}-00", "nonsense"))
    first, failed = exporter.get_finished_spans()
    assert first.name == "worker.execute"
    assert first.context is not None and first.parent is not None
    assert f"{first.context.trace_id:032x}" == TRACE
    assert f"{first.parent.span_id:016x}" == SPAN
    assert (first.start_time, first.end_time) == (1_005_000, 1_020_000)
    assert dict(first.attributes or {}) == {
        "orchid.model": "tiny",
        "orchid.variant": "tiny-a",
        "orchid.tokens": 4,
        "orchid.batch_items": 2,
        "orchid.batch_tokens": 8,
        "orchid.queue_us": 4,
        "orchid.run_us": 11,
        "orchid.cpu_us": 8,
    }
    assert first.status.is_ok or first.status.is_unset
    assert failed.status.description == "InvalidInput"
    tracing.shutdown()


def test_a_generation_has_one_span_with_its_account_or_its_error() -> None:
    exporter = InMemorySpanExporter()
    tracing = tracing_through(SimpleSpanProcessor(exporter), "w", 1.0, 1_000_000)
    call = GenerationCall(1, "chat", "chat-q4", (5, 6, 7), 5_000, traceparent=SAMPLED)
    usage = Usage(3, 2, 9, 1_000, 8_000, 90_000, 3_000, 4_000, 6_000, 7_000, 100, 1)
    tracing.record_generation(call, usage, 95_000)
    tracing.record_generation(call, Failed(InvalidInput("no")), 95_000)
    tracing.record_generation(call, Admitted(3, 0, 1), 95_000)
    tracing.record_generation(replace(call, traceparent=""), usage, 95_000)
    whole, failed, cut = exporter.get_finished_spans()
    assert (whole.name, whole.start_time, whole.end_time) == (
        "worker.generate",
        1_005_000,
        1_095_000,
    )
    attributes = dict(whole.attributes or {})
    assert attributes["orchid.generated_tokens"] == 9
    assert attributes["orchid.first_token_us"] == 8
    assert not any(isinstance(value, str) and "5" in value for value in attributes.values())
    assert failed.status.description == "InvalidInput"
    # The caller went away before the end.
    assert cut.status.description == "Cancelled"
    tracing.shutdown()


def test_a_share_of_nothing_records_nothing() -> None:
    exporter = InMemorySpanExporter()
    tracing = tracing_through(SimpleSpanProcessor(exporter), "w", 0.0, 0)
    tracing.record(outcome(SAMPLED))
    assert exporter.get_finished_spans() == ()


def test_without_an_endpoint_there_are_no_spans() -> None:
    tracing = start_tracing("", "w", 1.0, 0)
    assert tracing.tracer is None
    tracing.record(outcome(SAMPLED))
    tracing.shutdown()


@pytest.mark.parametrize(
    ("traceparent", "sampled"),
    [(SAMPLED, True), (SAMPLED[:-1] + "3", True), (SAMPLED[:-1] + "2", False), ("", False),
     (SAMPLED[:-2] + "zz", False)],
)  # fmt: skip
def test_the_sampled_flag_is_the_lowest_bit(traceparent: str, sampled: bool) -> None:
    assert is_sampled(traceparent) is sampled


def test_json_logs_are_one_object_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        start_logging("info", "json", "w")
        logging.getLogger("x").info("model=%s ready", "tiny")
        line = json.loads(capsys.readouterr().err)
        assert (line["level"], line["message"], line["worker"]) == ("info", "model=tiny ready", "w")
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
