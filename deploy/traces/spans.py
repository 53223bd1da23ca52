"""Spans read back from files of OTLP in JSON, of every process of a cluster."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

AttributeValue = str | bool | int | float

# OTLP's numbers for kinds of spans, and for a status that is an error.
INTERNAL, SERVER, CLIENT = 1, 2, 3
_ERROR = 2
_WORKER = "orchid-worker"
_SUFFIX = ".jsonl"
# What is looked at of each file for the latest traces.
_TAIL_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened in a span, at a time in ns since 1970."""

    name: str
    at_ns: int
    attributes: Mapping[str, AttributeValue]


@dataclass(frozen=True, slots=True)
class Span:
    """A span of one process; times in ns since 1970. `parent_id` is empty without a parent.

    `process` is a worker's name, "controlplane" or "client", `kind` INTERNAL, SERVER or CLIENT;
    `fault` says why it failed, empty when it did not; `links` are trace and span ids.
    """

    trace_id: str
    span_id: str
    parent_id: str
    name: str
    process: str
    kind: int
    begun_ns: int
    ended_ns: int
    attributes: Mapping[str, AttributeValue]
    events: tuple[Event, ...] = ()
    links: tuple[tuple[str, str], ...] = ()
    fault: str = ""

    @property
    def took_ns(self) -> int:
        """From begin to end."""
        return self.ended_ns - self.begun_ns


def read_spans(directory: Path, trace_id: str) -> list[Span]:
    """Every span of the traces whose id begins like this."""
    wanted = f'"traceId":"{trace_id}'
    lines = (line for path in _files(directory) for line in _lines(path) if wanted in line)
    # A link may name the trace, too.
    return [span for span in spans_of(lines) if span.trace_id.startswith(trace_id)]


def read_latest(directory: Path) -> list[Span]:
    """The spans at the ends of all files: of the latest traces."""
    lines = (line for path in _files(directory) for line in _lines(path, _TAIL_BYTES))
    return list(spans_of(lines))


def spans_of(lines: Iterable[str]) -> Iterator[Span]:
    """The spans of lines of OTLP in JSON; a line that was cut short is left out."""
    for line in lines:
        try:
            document = json.loads(line)
        except ValueError:
            continue
        yield from spans_in(document)


def spans_in(document: Mapping[str, Any]) -> Iterator[Span]:
    """The spans of one OTLP document."""
    for resource in document.get("resourceSpans", ()):
        about = _attributes(resource.get("resource", {}).get("attributes", ()))
        process = _process(about)
        for scope in resource.get("scopeSpans", ()):
            for entry in scope.get("spans", ()):
                yield _span(entry, process)


def _process(about: Mapping[str, AttributeValue]) -> str:
    """Workers have names; of other processes there is one of a kind."""
    service = str(about.get("service.name", ""))
    if service == _WORKER:
        return str(about.get("service.instance.id", service))
    return service.removeprefix("orchid-")


def _span(entry: Mapping[str, Any], process: str) -> Span:
    status = entry.get("status", {})
    failed = status.get("code") == _ERROR
    return Span(
        trace_id=entry["traceId"],
        span_id=entry["spanId"],
        parent_id=entry.get("parentSpanId", ""),
        name=entry["name"],
        process=process,
        kind=entry.get("kind", INTERNAL),
        begun_ns=int(entry["startTimeUnixNano"]),
        ended_ns=int(entry["endTimeUnixNano"]),
        attributes=_attributes(entry.get("attributes", ())),
        events=tuple(
            Event(each["name"], int(each["timeUnixNano"]), _attributes(each.get("attributes", ())))
            for each in entry.get("events", ())
        ),
        links=tuple((each["traceId"], each["spanId"]) for each in entry.get("links", ())),
        fault=status.get("message", "") or "failed" if failed else "",
    )


def _attributes(pairs: Iterable[Mapping[str, Any]]) -> dict[str, AttributeValue]:
    return {pair["key"]: _value(pair.get("value", {})) for pair in pairs}


def _value(value: Mapping[str, Any]) -> AttributeValue:
    if "intValue" in value:
        return int(value["intValue"])
    if "doubleValue" in value:
        return float(value["doubleValue"])
    if "boolValue" in value:
        return bool(value["boolValue"])
    return str(value.get("stringValue", ""))


def _files(directory: Path) -> list[Path]:
    return sorted(directory.glob(f"*{_SUFFIX}"))


def _lines(path: Path, tail_bytes: int = 0) -> Iterator[str]:
    """The lines of a file, or those at its end; one that goes meanwhile has none."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            begin = max(0, size - tail_bytes) if tail_bytes else 0
            file.seek(begin)
            if begin:
                file.readline()
            for line in file:
                yield line.decode(errors="replace")
    except OSError:
        return
