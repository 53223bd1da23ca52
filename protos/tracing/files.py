"""Spans as files: OTLP in JSON, what ended together on a line, in a bounded number of bytes.

The form is that of OpenTelemetry's file exporter, so collectors read it too:
https://opentelemetry.io/docs/specs/otel/protocol/file-exporter/
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from protos.tracing.lines import head_of, line_of
from protos.tracing.spans import EncodedSpans, FinishedSpans, Origin

log = logging.getLogger(__name__)

SUFFIX = ".jsonl"
OLD_SUFFIX = ".1.jsonl"


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
        self._origin: Origin | None = None
        self._head = ""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Write these spans; FAILURE when the file cannot be written."""
        lines = "".join([self._line(ended) for ended in spans])
        try:
            self._append(lines.encode())
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

    def encoded(self, ended: FinishedSpans) -> EncodedSpans:
        """What `export` will write of these."""
        return EncodedSpans(self._line(ended))

    def _line(self, ended: object) -> str:
        if isinstance(ended, EncodedSpans):
            return str(ended.data)
        assert isinstance(ended, FinishedSpans)
        if ended.origin is not self._origin:
            self._origin, self._head = ended.origin, head_of(ended.origin)
        return line_of(self._head, ended.records, ended.origin.wall_offset_ns)

    def _append(self, lines: bytes) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        # Opened each time: a directory that somebody empties is filled again.
        with self._path.open("ab") as file:
            file.write(lines)
            full = file.tell() >= self._max_bytes
        if full:
            self._path.replace(self._old)
