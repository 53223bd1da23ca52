"""Where spans go: to a collector by OTLP over gRPC, to a file, or to both."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.environment_variables import OTEL_BSP_SCHEDULE_DELAY
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from protos.tracing.encode import request_bytes, spans_bytes
from protos.tracing.endpoint import SECURE
from protos.tracing.files import SpanFile, span_file
from protos.tracing.spans import EncodedSpans, FinishedSpans, Origin, SpanSink

# A collector that is gone must not hold up the end of the process for long.
_TIMEOUT_S = 3.0
_COLLECTOR_EVERY_MS = 500.0
# Soon enough for whoever asks for a trace with the next command.
_FILE_EVERY_MS = 200.0


class CollectorExporter(OTLPSpanExporter):
    """OpenTelemetry's exporter, connection and retries and all, with our own encoding.

    All that it is given is of one origin, that of its process.
    """

    _origin: Origin | None = None

    def encoded(self, ended: FinishedSpans) -> EncodedSpans:
        """What will be sent of these."""
        self._origin = ended.origin
        return EncodedSpans(spans_bytes(ended.records, ended.origin.wall_offset_ns))

    def _translate_data(self, data: Sequence[Any]) -> ExportTraceServiceRequest:
        assert self._origin is not None
        content = request_bytes(self._origin, [ended.data for ended in data])
        return ExportTraceServiceRequest.FromString(content)


class AtOnce(BatchSpanProcessor):
    """Encodes spans as soon as they have ended.

    As objects they would be looked at by each collection of garbage until they leave, and encoded
    by a thread for which the event loop has to wait.
    """

    def __init__(self, exporter: CollectorExporter | SpanFile, delay_ms: float | None) -> None:
        super().__init__(exporter, schedule_delay_millis=delay_ms)
        self._encoded = exporter.encoded

    def on_end(self, span: ReadableSpan) -> None:
        """Queue what `SpanSink` hands over."""
        super().on_end(cast(ReadableSpan, self._encoded(cast(FinishedSpans, span))))


@dataclass(frozen=True, slots=True)
class Destinations:
    """`endpoint` is `host:port`, `http://host:port`, or `https://host:port` for TLS, "" for none.

    `directory` gets a file for each process, of at most twice `file_bytes`; None for none. TLS
    takes certificates from OTEL_EXPORTER_OTLP_CERTIFICATE and the variables beside it;
    OTEL_BSP_SCHEDULE_DELAY says how many ms spans wait for others.
    """

    endpoint: str = ""
    directory: Path | None = None
    file_bytes: int = 32 << 20


def open_sink(
    to: Destinations,
    *,
    process: str,
    resource: Mapping[str, str],
    scope: str,
    wall_offset_ns: int,
) -> SpanSink | None:
    """A sink to these destinations; None when there is none, and then there are no spans.

    `process` names its file.
    """
    processors = []
    if to.endpoint:
        exporter = CollectorExporter(
            endpoint=to.endpoint,
            insecure=not to.endpoint.startswith(SECURE),
            timeout=_TIMEOUT_S,
        )
        told = OTEL_BSP_SCHEDULE_DELAY in os.environ
        delay = None if told else _COLLECTOR_EVERY_MS
        processors.append(AtOnce(exporter, delay))
    if to.directory is not None:
        # Commands look for it before there is a span; what hinders it is said when one is written.
        with suppress(OSError):
            to.directory.mkdir(parents=True, exist_ok=True)
        file = SpanFile(span_file(to.directory, process), to.file_bytes)
        processors.append(AtOnce(file, _FILE_EVERY_MS))
    if not processors:
        return None
    return SpanSink(processors, resource=resource, scope=scope, wall_offset_ns=wall_offset_ns)
