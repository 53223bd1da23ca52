"""Where spans go: to a collector by OTLP over gRPC, to a file, or to both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from protos.tracing.encode import request_of
from protos.tracing.endpoint import SECURE
from protos.tracing.files import SpanFile, span_file
from protos.tracing.spans import SpanSink

# A collector that is gone must not hold up the end of the process for long.
_TIMEOUT_S = 3.0
_COLLECTOR_EVERY_MS = 500.0
# Soon enough for whoever asks for a trace with the next command.
_FILE_EVERY_MS = 200.0


class CollectorExporter(OTLPSpanExporter):
    """OpenTelemetry's exporter, connection and retries and all, with our own encoding."""

    def _translate_data(self, data: Sequence[Any]) -> ExportTraceServiceRequest:
        return request_of(data)


@dataclass(frozen=True, slots=True)
class Destinations:
    """`endpoint` is `host:port`, `http://host:port`, or `https://host:port` for TLS, "" for none.

    `directory` gets a file for each process, of at most twice `file_bytes`; None for none. TLS
    takes certificates from OTEL_EXPORTER_OTLP_CERTIFICATE and the variables beside it.
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
        processors.append(BatchSpanProcessor(exporter, schedule_delay_millis=_COLLECTOR_EVERY_MS))
    if to.directory is not None:
        # Commands look for it before there is a span; what hinders it is said when one is written.
        with suppress(OSError):
            to.directory.mkdir(parents=True, exist_ok=True)
        file = SpanFile(span_file(to.directory, process), to.file_bytes)
        processors.append(BatchSpanProcessor(file, schedule_delay_millis=_FILE_EVERY_MS))
    if not processors:
        return None
    return SpanSink(processors, resource=resource, scope=scope, wall_offset_ns=wall_offset_ns)
