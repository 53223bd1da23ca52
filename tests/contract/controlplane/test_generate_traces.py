"""A generation's span: in its caller's trace, forwarded to the worker, without content."""

from __future__ import annotations

import grpc
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from controlplane.config import TelemetryConfig
from controlplane.telemetry import Telemetry
from tests.contract.controlplane.decode_worker import (
    DecodeWorker,
    ask,
    chat,
    full,
    refusal,
    rest,
    writers,
)

TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED = (("traceparent", f"00-{TRACE}-{CALLER}-01"),)


def made() -> tuple[Telemetry, InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    return Telemetry(TelemetryConfig(), epoch_offset_ns=0, exporter=exporter), exporter


async def test_a_sampled_generation_has_a_span_with_shapes_and_no_words() -> None:
    telemetry, exporter = made()
    worker = DecodeWorker()
    async with writers(worker, telemetry=telemetry) as house:
        request = ask(chat=chat(("user", "once upon a time")))
        await rest(house.inference.Generate(request, metadata=SAMPLED))
        await house.at_rest()
        await rest(house.inference.Generate(ask()))
    telemetry.close()
    (span,) = exporter.get_finished_spans()
    assert span.name == "orchid.generate" and span.parent is not None
    assert f"{span.context.trace_id:032x}" == TRACE and f"{span.parent.span_id:016x}" == CALLER
    forwarded, unsampled = (call.traceparent for call in worker.calls)
    assert forwarded == f"00-{TRACE}-{span.context.span_id:016x}-01"
    assert unsampled == ""
    attributes = dict(span.attributes or {})
    assert attributes["orchid.variant"] == "writer-q4" and attributes["orchid.worker_id"] == "d1"
    assert attributes["orchid.input_tokens"] == 6 and attributes["orchid.generated_tokens"] == 6
    assert attributes["orchid.finish"] == "length" and attributes["orchid.sends"] == 1
    assert not any("once" in str(value) for value in attributes.values())


async def test_a_refused_generation_says_so_on_its_span() -> None:
    telemetry, exporter = made()
    async with writers(DecodeWorker(script=full), telemetry=telemetry) as house:
        error, _ = await refusal(house.inference.Generate(ask(), metadata=SAMPLED))
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        await house.at_rest()
    telemetry.close()
    (span,) = exporter.get_finished_spans()
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "refused")


async def test_without_telemetry_a_sampled_context_is_passed_on() -> None:
    worker = DecodeWorker()
    async with writers(worker) as house:
        await rest(house.inference.Generate(ask(), metadata=SAMPLED))
    assert worker.calls[0].traceparent == SAMPLED[0][1]
