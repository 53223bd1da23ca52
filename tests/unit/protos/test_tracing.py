"""Trace contexts, endpoints, and spans as files."""

from __future__ import annotations

import base64
import json
import logging
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.json_format import MessageToDict
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from bench.certificates import Authority
from protos.tracing.context import (
    in_share,
    is_sampled,
    read_traceparent,
    trace_bound,
    write_traceparent,
)
from protos.tracing.encode import request_bytes, spans_bytes
from protos.tracing.endpoint import endpoint_fault
from protos.tracing.export import Destinations, open_sink
from protos.tracing.files import SpanFile, span_file
from protos.tracing.lines import head_of, line_of
from protos.tracing.spans import Kind, SpanEvent, SpanRecord, SpanSink
from tests.integration.collector import collecting
from tests.kept_spans import CALLER, SAMPLED, TRACE


@given(st.integers(1, 2**128 - 1), st.integers(1, 2**64 - 1))
def test_what_is_written_is_read(trace_id: int, span_id: int) -> None:
    context = read_traceparent(write_traceparent(trace_id, span_id))
    assert context == (trace_id, span_id, True)


@pytest.mark.parametrize(
    ("text", "sampled"),
    [
        (SAMPLED, True),
        (SAMPLED[:-2] + "03", True),
        (SAMPLED[:-2] + "02", False),
        ("01" + SAMPLED[2:] + "-more", True),
    ],
)
def test_the_sampled_flag_is_the_lowest_bit(text: str, sampled: bool) -> None:
    context = read_traceparent(text)
    assert context is not None and context.sampled is sampled
    assert (f"{context.trace_id:032x}", f"{context.span_id:016x}") == (TRACE, CALLER)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        SAMPLED[:-1],
        SAMPLED + "-more",
        "ff" + SAMPLED[2:],
        SAMPLED.upper(),
        f"00-{'0' * 32}-{CALLER}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        SAMPLED[:-2] + "zz",
        f" {SAMPLED}",
    ],
)
def test_a_malformed_context_is_none(text: str) -> None:
    assert read_traceparent(text) is None and not is_sampled(text)


@given(st.text(max_size=80))
def test_no_header_breaks_the_reader(text: str) -> None:
    read_traceparent(text)


def test_a_share_holds_in_every_process() -> None:
    assert in_share(2**127 + 5, trace_bound(1.0)) and not in_share(5, trace_bound(0.0))
    assert in_share(2**63 - 1, trace_bound(0.5)) and not in_share(2**63, trace_bound(0.5))


@pytest.mark.parametrize(
    "text", ["", "host:4317", "http://10.0.0.1:4317", "https://collector.example:443/", "[::1]:1"]
)
def test_endpoints_that_name_a_collector(text: str) -> None:
    assert endpoint_fault(text) == ""


@pytest.mark.parametrize("text", ["host", "host:", ":1", "ftp://host:1", "host:0", "h:70000"])
def test_endpoints_that_do_not(text: str) -> None:
    assert repr(text) in endpoint_fault(text)


def record(span_id: int = 7, **changes: object) -> SpanRecord:
    made = SpanRecord(
        "orchid.dispatch",
        int(TRACE, 16),
        span_id,
        int(CALLER, 16),
        10,
        30,
        Kind.CLIENT,
        {"orchid.tokens": 3, "orchid.chance": 0.5, "orchid.admitted": True, "orchid.model": "m"},
        (SpanEvent("first_token", 20, {"n": 1}),),
        ((int(TRACE, 16), 9),),
        "refused",
    )
    return made._replace(**changes)  # type: ignore[arg-type]


def sink_into(file: SpanFile) -> SpanSink:
    return SpanSink(
        (SimpleSpanProcessor(file),),
        resource={"service.name": "s", "service.instance.id": "w"},
        scope="x",
        wall_offset_ns=1000,
    )


def test_a_line_is_otlp_in_json(tmp_path: Path) -> None:
    path = span_file(tmp_path, "worker-0")
    sink_into(SpanFile(path, 1 << 20)).emit([record()])
    (line,) = path.read_text().splitlines()
    (resource,) = json.loads(line)["resourceSpans"]
    attributes = {a["key"]: a["value"] for a in resource["resource"]["attributes"]}
    assert attributes["service.instance.id"] == {"stringValue": "w"}
    (span,) = resource["scopeSpans"][0]["spans"]
    assert (span["traceId"], span["parentSpanId"]) == (TRACE, CALLER)
    assert span["spanId"] == f"{7:016x}" and span["kind"] == 3
    assert (span["startTimeUnixNano"], span["endTimeUnixNano"]) == ("1010", "1030")
    assert span["status"] == {"message": "refused", "code": 2}
    assert span["events"][0]["timeUnixNano"] == "1020"
    assert span["links"][0]["spanId"] == f"{9:016x}"
    values = {a["key"]: a["value"] for a in span["attributes"]}
    assert values["orchid.tokens"] == {"intValue": "3"}
    assert values["orchid.admitted"] == {"boolValue": True}


def test_files_are_two_and_bounded(tmp_path: Path) -> None:
    path = span_file(tmp_path, "w")
    sink = sink_into(SpanFile(path, 4000))
    for number in range(1, 101):
        sink.emit([record(number)])
    files = sorted(file.name for file in tmp_path.iterdir())
    assert files in (["w.1.jsonl"], ["w.1.jsonl", "w.jsonl"])
    assert all(file.stat().st_size < 6000 for file in tmp_path.iterdir())
    last = (tmp_path / files[-1]).read_text().splitlines()[-1]
    assert f"{100:016x}" in last


def test_a_file_that_cannot_be_written_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "taken").write_text("")
    sink = sink_into(SpanFile(span_file(tmp_path / "taken", "w"), 4000))
    with caplog.at_level(logging.WARNING):
        sink.emit([record(1), record(2)])
    assert len([r for r in caplog.records if "spans are lost" in r.getMessage()]) == 1


def test_names_of_files_are_safe(tmp_path: Path) -> None:
    assert span_file(tmp_path, "../a b/c").name == ".._a_b_c.jsonl"


def test_without_a_destination_there_is_no_sink(tmp_path: Path) -> None:
    def opened(to: Destinations) -> SpanSink | None:
        return open_sink(to, process="w", resource={}, scope="s", wall_offset_ns=0)

    assert opened(Destinations()) is None
    sink = opened(Destinations(directory=tmp_path))
    assert sink is not None
    sink.emit([record()])
    sink.close()
    assert "orchid.dispatch" in span_file(tmp_path, "w").read_text()


def test_https_is_tls_and_nothing_else_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue("collector", "127.0.0.1")
    credentials = grpc.ssl_server_credentials([(key.read_bytes(), certificate.read_bytes())])
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", str(authority.path))
    with collecting(credentials) as collector:
        for scheme in ("http://", "https://"):
            to = Destinations(f"{scheme}{collector.address}")
            sink = open_sink(to, process="w", resource={}, scope="s", wall_offset_ns=0)
            assert sink is not None
            sink.emit([record(7 if scheme == "https://" else 8)])
            sink.close()
    assert [span.span_id for span in collector.spans()] == [f"{7:016x}"]


def in_protobufs_words(record: SpanRecord, sink: SpanSink) -> dict[str, Any]:
    """What protobuf's JSON of the same span is, with ids as OTLP wants them."""
    spans = spans_bytes((record,), sink.wall_offset_ns)
    request = ExportTraceServiceRequest.FromString(request_bytes(sink.origin, [spans]))
    document = MessageToDict(request, use_integers_for_enums=True)
    (span,) = document["resourceSpans"][0]["scopeSpans"][0]["spans"]
    for each in (span, *span.get("links", ())):
        for key in ("traceId", "spanId", "parentSpanId"):
            if key in each:
                each[key] = base64.b64decode(each[key]).hex()
    return document


WHOLE = st.integers(-(2**63), 2**63 - 1)
VALUES = st.one_of(st.text(max_size=20), st.booleans(), WHOLE, st.floats())


@given(
    st.dictionaries(st.text(min_size=1, max_size=10), VALUES, max_size=4),
    st.integers(0, 2**64 - 1),
    st.sampled_from(("", "refused", 'a "quoted"\nword')),
    st.booleans(),
)
def test_a_line_says_what_protobufs_json_says(
    attributes: dict[str, Any], parent_id: int, fault: str, bare: bool
) -> None:
    sink = SpanSink((), resource={"service.name": 's"'}, scope="x", wall_offset_ns=1000)
    made = record(attributes=attributes, parent_id=parent_id, fault=fault)
    if bare:
        made = made._replace(events=(), links=())
    line = line_of(head_of(sink.origin), [made], sink.wall_offset_ns)
    assert line.endswith("\n") and line.count("\n") == 1
    assert json.loads(line) == in_protobufs_words(made, sink)


def test_spans_that_ended_together_are_on_one_line(tmp_path: Path) -> None:
    path = span_file(tmp_path, "w")
    sink_into(SpanFile(path, 1 << 20)).emit([record(1), record(2)])
    (line,) = path.read_text().splitlines()
    spans = json.loads(line)["resourceSpans"][0]["scopeSpans"][0]["spans"]
    assert [span["spanId"] for span in spans] == [f"{1:016x}", f"{2:016x}"]
