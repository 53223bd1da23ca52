"""Spans: only for sampled requests, on the request's own times, joined to the caller's trace."""

from collections.abc import Sequence

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from controlplane.config import TelemetryConfig
from controlplane.registry import WorkerState
from controlplane.telemetry import Telemetry, is_sampled, traceparent_of
from tests.unit.controlplane.fake_fleet import MS, House
from tests.unit.controlplane.virtual_loop import run

TRACE = "0af7651916cd43dd8448eb211c80319c"
SAMPLED = f"00-{TRACE}-b7ad6b7169203331-01"
UNSAMPLED = f"00-{TRACE}-b7ad6b7169203331-00"


class Kept(SpanExporter):
    """Keeps what is exported."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.spans += spans
        return SpanExportResult.SUCCESS


def test_a_sampled_request_gets_a_span_in_its_callers_trace() -> None:
    kept = Kept()
    telemetry = Telemetry(TelemetryConfig(), epoch_offset_ns=1000, exporter=kept)
    span = telemetry.start(SAMPLED, 5)
    assert span is not None
    onward = traceparent_of(span)
    assert onward.startswith(f"00-{TRACE}-")
    assert onward.endswith("-01")
    assert onward != SAMPLED
    telemetry.finish(span, 25, {"orchid.variant": "best"})
    telemetry.close()
    (read,) = kept.spans
    assert (read.start_time, read.end_time) == (1005, 1025)
    assert read.parent is not None
    assert f"{read.parent.span_id:016x}" == "b7ad6b7169203331"
    assert dict(read.attributes or {}) == {"orchid.variant": "best"}


@pytest.mark.parametrize("traceparent", ["", UNSAMPLED, "nonsense", "00-x-y-zz"])
def test_what_is_not_sampled_costs_no_span(traceparent: str) -> None:
    telemetry = Telemetry(TelemetryConfig(), epoch_offset_ns=0, exporter=Kept())
    assert telemetry.start(traceparent, 0) is None
    assert not is_sampled(traceparent)
    telemetry.close()


def test_without_an_endpoint_nothing_is_made() -> None:
    telemetry = Telemetry(TelemetryConfig(), epoch_offset_ns=0)
    assert telemetry.start(SAMPLED, 0) is None
    telemetry.close()


def test_roots_are_sampled_by_the_ratio() -> None:
    telemetry = Telemetry(TelemetryConfig(sample_ratio=1.0), epoch_offset_ns=0, exporter=Kept())
    span = telemetry.start("", 0)
    assert span is not None
    assert telemetry.start(UNSAMPLED, 0) is None
    telemetry.finish(span, 1, {}, "refused: full")
    telemetry.close()


def test_the_dispatcher_s_span_carries_the_decision_and_the_worker_joins_it() -> None:
    kept = Kept()

    async def traced() -> None:
        house = House()
        telemetry = Telemetry(TelemetryConfig(), epoch_offset_ns=0, exporter=kept)
        house.dispatcher._telemetry = telemetry
        worker = house.join()
        sampled, plain = house.ask(), house.ask()
        sampled.traceparent, plain.traceparent = SAMPLED, UNSAMPLED
        await house.dispatcher.submit(sampled)
        await house.dispatcher.submit(plain)
        assert worker.session.state is WorkerState.READY
        assert worker.received[0].requests[0].traceparent.startswith(f"00-{TRACE}-")
        assert worker.received[1].requests[0].traceparent == ""
        house.close()
        telemetry.close()

    run(traced())
    (span,) = kept.spans
    attributes = dict(span.attributes or {})
    assert attributes["orchid.variant"] == "best"
    assert attributes["orchid.reason"] == "most-accurate-in-reserve"
    assert attributes["orchid.execute_ms"] == 10.0
    assert (span.end_time or 0) - (span.start_time or 0) == 10 * MS
