"""Spans as files: OTLP in JSON, one span a line, in a bounded number of bytes.

The form is that of OpenTelemetry's file exporter, so collectors read it too:
https://opentelemetry.io/docs/specs/otel/protocol/file-exporter/
"""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from google.protobuf.json_format import MessageToDict
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from protos.tracing.encode import request_of
from protos.tracing.spans import FinishedSpans

log = logging.getLogger(__name__)

SUFFIX = ".jsonl"
OLD_SUFFIX = ".1.jsonl"
# OTLP writes ids in hexadecimal digits, protobuf's JSON in base64.
_IDS = ("traceId", "spanId", "parentSpanId")


def span_file(directory: Path, process: str) -> Path:
    """Where a process of this name keeps its spans; what no file name may hold becomes `_`."""
    name = "".join(c if c.isalnum() or c in "-._" else "_" for c in process)
    return directory / f"{name}{SUFFIX}"


class SpanFile(SpanExporter):
    """Appends to a file until it has `max_bytes`; then it takes the place of the old one.

    Two files of that size are therefore the most. A file that cannot be written is said once.
    """

    def __init__(self, path: Path, max_bytes: int) -> None:
        self._path = path
        self._old = path.with_name(path.name.removesuffix(SUFFIX) + OLD_SUFFIX)
        self._max_bytes = max_bytes
        self._failed = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Write these spans; FAILURE when the file cannot be written."""
        lines = b"".join([line_of(document) for document in documents_of(spans)])
        try:
            self._append(lines)
        except OSError as error:
            if not self._failed:
                log.warning("spans are lost: cannot write %s: %s", self._path, error.strerror)
            self._failed = True
            return SpanExportResult.FAILURE
        self._failed = False
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        """Nothing is held."""

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Everything that was exported is written."""
        return True

    def _append(self, lines: bytes) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        # Opened each time: a directory that somebody empties is filled again.
        with self._path.open("ab") as file:
            file.write(lines)
            full = file.tell() >= self._max_bytes
        if full:
            self._path.replace(self._old)


def documents_of(spans: Sequence[object]) -> Iterator[dict[str, Any]]:
    """A document for each span of these, with the process and scope it is of."""
    for ended in spans:
        assert isinstance(ended, FinishedSpans)
        for record in ended.records:
            request = request_of((FinishedSpans((record,), ended.origin),))
            yield MessageToDict(request, use_integers_for_enums=True)


def line_of(document: dict[str, Any]) -> bytes:
    """One document as a line of JSON."""
    for resource in document["resourceSpans"]:
        for scope in resource["scopeSpans"]:
            for entry in scope["spans"]:
                for each in (entry, *entry.get("links", ())):
                    each.update({key: _hexadecimal(each[key]) for key in _IDS if key in each})
    return json.dumps(document, separators=(",", ":")).encode() + b"\n"


def _hexadecimal(encoded: str) -> str:
    return base64.b64decode(encoded).hex()
