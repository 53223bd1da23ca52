"""Finished spans as OTLP's bytes.

Most of a span comes again: its name, the keys of what it says, models and variants. Those are
encoded once. Filling message objects, attribute by attribute, takes as long as all the rest of
what a recorded request costs (docs/decisions/0088-what-watching-costs.md).

Fields are those of opentelemetry/proto/trace/v1/trace.proto and common/v1/common.proto.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from struct import Struct
from typing import cast

from protos.tracing.spans import Attributes, AttributeValue, Origin, SpanEvent, SpanRecord

# Tags: a field's number, and what follows: bytes (2), eight of them (1), or a varint (0).
_RESOURCE_SPANS = _RESOURCE = _SCOPE = _RESOURCE_ATTRIBUTE = _NAME_OF_SCOPE = b"\x0a"
_SCOPE_SPANS = _SPAN = b"\x12"
_TRACE_ID, _SPAN_ID, _PARENT_ID = b"\x0a\x10", b"\x12\x08", b"\x22\x08"
_NAME, _KIND, _BEGUN, _ENDED = b"\x2a", b"\x30", 0x39, 0x41
_ATTRIBUTE, _EVENT, _LINK, _STATUS = b"\x4a", b"\x5a", b"\x6a", b"\x7a"
_EVENT_TIME, _EVENT_NAME, _EVENT_ATTRIBUTE = 0x09, b"\x12", b"\x1a"
_MESSAGE, _IS_ERROR = b"\x12", b"\x18\x02"
_KEY, _VALUE = b"\x0a", b"\x12"
_TEXT, _TRUTH, _INTEGER, _DOUBLE = b"\x0a", b"\x10", b"\x18", b"\x21"

_TIMES = Struct("<BQBQ").pack
_TIME = Struct("<BQ").pack
_FLOAT = Struct("<d").pack
_MASK = (1 << 64) - 1


def spans_bytes(records: Iterable[SpanRecord], offset_ns: int) -> bytes:
    """Spans as the fields of a ScopeSpans; `offset_ns` makes their times those of the date."""
    return b"".join([_framed(_SPAN, _span(record, offset_ns)) for record in records])


def request_bytes(origin: Origin, spans: Iterable[bytes]) -> bytes:
    """An ExportTraceServiceRequest of what `spans_bytes` made, all of one origin."""
    about = _said(_RESOURCE_ATTRIBUTE, cast(Attributes, origin.resource.attributes))
    scope = _framed(_SCOPE, _framed(_NAME_OF_SCOPE, origin.scope.encode()))
    of_scope = _framed(_SCOPE_SPANS, b"".join([scope, *spans]))
    return _framed(_RESOURCE_SPANS, _framed(_RESOURCE, about) + of_scope)


def _span(record: SpanRecord, offset_ns: int) -> bytes:
    name, trace_id, span_id, parent_id, begun_ns, ended_ns, kind, said, events, links, fault = (
        record
    )
    found = _TRACE_ID + trace_id.to_bytes(16, "big") + _SPAN_ID + span_id.to_bytes(8, "big")
    if parent_id:
        found += _PARENT_ID + parent_id.to_bytes(8, "big")
    found += _named(name, kind) + _TIMES(_BEGUN, begun_ns + offset_ns, _ENDED, ended_ns + offset_ns)
    if said:
        found += _said(_ATTRIBUTE, said)
    for event in events:
        found += _framed(_EVENT, _event(event, offset_ns))
    for other_trace, other_span in links:
        ids = _TRACE_ID + other_trace.to_bytes(16, "big") + _SPAN_ID + other_span.to_bytes(8, "big")
        found += _framed(_LINK, ids)
    if fault:
        found += _framed(_STATUS, _framed(_MESSAGE, fault.encode()) + _IS_ERROR)
    return found


def _event(event: SpanEvent, offset_ns: int) -> bytes:
    time = _TIME(_EVENT_TIME, event.at_ns + offset_ns)
    name = _framed(_EVENT_NAME, event.name.encode())
    return time + name + _said(_EVENT_ATTRIBUTE, event.attributes)


def _said(tag: bytes, attributes: Attributes) -> bytes:
    """Every attribute as a field of this tag."""
    return b"".join([tag + _pair(key, value) for key, value in attributes.items()])


def _pair(key: str, value: AttributeValue) -> bytes:
    """A key and its value, with their length before them."""
    if isinstance(value, str):
        return _word(key, value)
    if isinstance(value, float):
        return _head(key, _DOUBLE, 8) + _FLOAT(value)
    # A bool is an int, too, and equal to one.
    if value is True or value is False:
        return _truth(key, "true" if value else "")
    number = _varint(value & _MASK)
    return _head(key, _INTEGER, len(number)) + number


@lru_cache(maxsize=4096)
def _word(key: str, value: str) -> bytes:
    content = value.encode("utf-8", "replace")
    length = _varint(len(content))
    return _head(key, _TEXT, len(length) + len(content)) + length + content


@lru_cache(maxsize=256)
def _truth(key: str, value: str) -> bytes:
    return _head(key, _TRUTH, 1) + (b"\x01" if value else b"\x00")


@lru_cache(maxsize=1024)
def _head(key: str, kind: bytes, size: int) -> bytes:
    """What stands before a value whose own field has `size` bytes after its tag."""
    before = _framed(_KEY, key.encode("utf-8", "replace")) + _VALUE + _varint(size + 1) + kind
    return _varint(len(before) + size) + before


@lru_cache(maxsize=256)
def _named(name: str, kind: int) -> bytes:
    return _framed(_NAME, name.encode()) + _KIND + _varint(kind)


def _framed(tag: bytes, content: bytes) -> bytes:
    return tag + _varint(len(content)) + content


def _of(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


_SMALL = tuple(map(_of, range(2048)))


def _varint(value: int) -> bytes:
    """An integer that is not negative, seven bits a byte, the lowest first."""
    return _SMALL[value] if value < 2048 else _of(value)
