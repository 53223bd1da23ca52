"""Finished spans, built from recorded times, and the sink that takes them.

Spans are made when what they tell of has ended, so nothing is kept alive meanwhile and what is
not recorded costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from typing import ClassVar, NamedTuple, TypeAlias, cast

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import SpanContext, TraceFlags

AttributeValue: TypeAlias = str | bool | int | float
Attributes: TypeAlias = Mapping[str, AttributeValue]

NO_ATTRIBUTES: Attributes = {}
_IDS = RandomIdGenerator()

new_trace_id: Callable[[], int] = _IDS.generate_trace_id
new_span_id: Callable[[], int] = _IDS.generate_span_id


class Kind(IntEnum):
    """What a span is: work inside a process, a call that came, or one that was made.

    The numbers are those of OTLP.
    """

    INTERNAL = 1
    SERVER = 2
    CLIENT = 3


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


class Origin(NamedTuple):
    """Where spans are of: the process, its part that made them, and its clock.

    `wall_offset_ns` turns the monotonic clock into wall-clock time, which spans need.
    """

    resource: Resource
    scope: str
    wall_offset_ns: int


class FinishedSpans:
    """What processors are given: spans that ended together, as one thing to queue.

    Of a span they only ask whether it is sampled, and all of these are.
    """

    __slots__ = ("origin", "records")

    context: ClassVar[SpanContext] = SpanContext(1, 1, False, TraceFlags(TraceFlags.SAMPLED))

    def __init__(self, records: Sequence[SpanRecord], origin: Origin) -> None:
        self.records = records
        self.origin = origin


class EncodedSpans:
    """The same, as its exporter writes it: text, or bytes of OTLP."""

    __slots__ = ("data",)

    context: ClassVar[SpanContext] = FinishedSpans.context

    def __init__(self, data: str | bytes) -> None:
        self.data = data


class SpanSink:
    """Takes finished spans, from any thread, and hands them to processors as `FinishedSpans`.

    `resource` names the process; see `Origin` for the rest.
    """

    def __init__(
        self,
        processors: Iterable[SpanProcessor],
        *,
        resource: Mapping[str, str],
        scope: str,
        wall_offset_ns: int,
    ) -> None:
        self.origin = Origin(Resource.create(dict(resource)), scope, wall_offset_ns)
        self._processors = tuple(processors)

    @property
    def wall_offset_ns(self) -> int:
        """From the monotonic clock to wall-clock time."""
        return self.origin.wall_offset_ns

    def emit(self, records: Sequence[SpanRecord]) -> None:
        """Queue spans for export, all of them or, where a queue is full, none."""
        # The exporters of this package read nothing else of it.
        spans = cast(ReadableSpan, FinishedSpans(records, self.origin))
        for processor in self._processors:
            processor.on_end(spans)

    def close(self) -> None:
        """Send what is left and stop."""
        for processor in self._processors:
            processor.shutdown()
