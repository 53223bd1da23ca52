"""Finished spans, built from recorded times, and the sink that takes them.

Spans are made when what they tell of has ended, so nothing is kept alive meanwhile and what is
not recorded costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import NamedTuple, TypeAlias

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan, SpanProcessor
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

AttributeValue: TypeAlias = str | bool | int | float
Attributes: TypeAlias = Mapping[str, AttributeValue]

NO_ATTRIBUTES: Attributes = {}
_IDS = RandomIdGenerator()
_FLAGS = TraceFlags(TraceFlags.SAMPLED)
_FINE = Status(StatusCode.UNSET)

new_trace_id: Callable[[], int] = _IDS.generate_trace_id
new_span_id: Callable[[], int] = _IDS.generate_span_id


class Kind(Enum):
    """What a span is: work inside a process, a call that came, or one that was made."""

    INTERNAL = SpanKind.INTERNAL
    SERVER = SpanKind.SERVER
    CLIENT = SpanKind.CLIENT


class SpanEvent(NamedTuple):
    """Something that happened at one time of a span."""

    name: str
    at_ns: int
    attributes: Attributes = NO_ATTRIBUTES


class SpanRecord(NamedTuple):
    """A finished span; times in ns of the process's monotonic clock.

    `parent_id` 0 has none. `links` are trace and span ids. `fault` is why it failed, a stable
    word: never a text that a caller could have written.
    """

    name: str
    trace_id: int
    span_id: int
    parent_id: int
    begun_ns: int
    ended_ns: int
    kind: Kind = Kind.INTERNAL
    attributes: Attributes = NO_ATTRIBUTES
    events: Sequence[SpanEvent] = ()
    links: Sequence[tuple[int, int]] = ()
    fault: str = ""


class _OneResource(Resource):
    """A resource that knows itself: the encoder would write it out to hash it for every span."""

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other


class SpanSink:
    """Takes finished spans, from any thread, and hands them to processors.

    `wall_offset_ns` turns the monotonic clock into wall-clock time, which spans need;
    `resource` names the process.
    """

    def __init__(
        self,
        processors: Iterable[SpanProcessor],
        *,
        resource: Mapping[str, str],
        scope: str,
        wall_offset_ns: int,
    ) -> None:
        self.wall_offset_ns = wall_offset_ns
        self._processors = tuple(processors)
        known = Resource.create(dict(resource))
        self._resource = _OneResource(dict(known.attributes), known.schema_url)
        self._scope = InstrumentationScope(scope)

    def emit(self, records: Iterable[SpanRecord]) -> None:
        """Queue spans for export; drops what no queue has room for."""
        for record in records:
            span = self._span(record)
            for processor in self._processors:
                processor.on_end(span)

    def close(self) -> None:
        """Send what is left and stop."""
        for processor in self._processors:
            processor.shutdown()

    def _span(self, record: SpanRecord) -> ReadableSpan:
        offset = self.wall_offset_ns
        trace_id = record.trace_id
        parent = None
        if record.parent_id:
            remote = record.kind is Kind.SERVER
            parent = SpanContext(trace_id, record.parent_id, remote, _FLAGS)
        return ReadableSpan(
            name=record.name,
            context=SpanContext(trace_id, record.span_id, False, _FLAGS),
            parent=parent,
            resource=self._resource,
            attributes=record.attributes,
            events=_events(record.events, offset) if record.events else (),
            links=_links(record.links) if record.links else (),
            kind=record.kind.value,
            status=Status(StatusCode.ERROR, record.fault) if record.fault else _FINE,
            start_time=record.begun_ns + offset,
            end_time=record.ended_ns + offset,
            instrumentation_scope=self._scope,
        )


def _events(events: Sequence[SpanEvent], offset_ns: int) -> list[Event]:
    return [Event(each.name, each.attributes, each.at_ns + offset_ns) for each in events]


def _links(links: Sequence[tuple[int, int]]) -> list[Link]:
    return [Link(SpanContext(*link, True, _FLAGS)) for link in links]
