"""Finished spans as text of OTLP in JSON: a line for what ended together.

Put together here from parts: the way over protobuf's messages and their conversion to JSON takes
twenty times as long (docs/decisions/0088-what-watching-costs.md).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from functools import lru_cache
from typing import cast

from protos.tracing.spans import Attributes, AttributeValue, Origin, SpanEvent, SpanRecord

_TAIL = "]}]}]}\n"


def head_of(origin: Origin) -> str:
    """What stands before the spans of a process; the same for all of its lines."""
    about = _attributes(cast(Attributes, origin.resource.attributes))
    return (
        f'{{"resourceSpans":[{{"resource":{{"attributes":[{about}]}},'
        f'"scopeSpans":[{{"scope":{{"name":{_text(origin.scope)}}},"spans":['
    )


def line_of(head: str, records: Iterable[SpanRecord], offset_ns: int) -> str:
    """One line; `head` is that of their origin, `offset_ns` makes their times those of the date."""
    return f"{head}{','.join([_span(record, offset_ns) for record in records])}{_TAIL}"


def _span(record: SpanRecord, offset_ns: int) -> str:
    # The parts that most spans lack are left out, as protobuf's JSON leaves them out.
    parent = f'"parentSpanId":"{record.parent_id:016x}",' if record.parent_id else ""
    more = ""
    if record.attributes:
        more += f',"attributes":[{_attributes(record.attributes)}]'
    if record.events:
        more += f',"events":[{",".join([_event(each, offset_ns) for each in record.events])}]'
    if record.links:
        links = [_link(trace_id, span_id) for trace_id, span_id in record.links]
        more += f',"links":[{",".join(links)}]'
    if record.fault:
        more += f',"status":{{"message":{_text(record.fault)},"code":2}}'
    return (
        f'{{"traceId":"{record.trace_id:032x}","spanId":"{record.span_id:016x}",{parent}'
        f'"name":{_text(record.name)},"kind":{int(record.kind)},'
        f'"startTimeUnixNano":"{record.begun_ns + offset_ns}",'
        f'"endTimeUnixNano":"{record.ended_ns + offset_ns}"{more}}}'
    )


def _link(trace_id: int, span_id: int) -> str:
    return f'{{"traceId":"{trace_id:032x}","spanId":"{span_id:016x}"}}'


def _event(event: SpanEvent, offset_ns: int) -> str:
    about = f',"attributes":[{_attributes(event.attributes)}]' if event.attributes else ""
    return f'{{"timeUnixNano":"{event.at_ns + offset_ns}","name":{_text(event.name)}{about}}}'


def _attributes(attributes: Attributes) -> str:
    return ",".join(
        [f'{{"key":{_text(key)},"value":{_value(value)}}}' for key, value in attributes.items()]
    )


def _value(value: AttributeValue) -> str:
    # A bool is an int, too.
    if value is True:
        return '{"boolValue":true}'
    if value is False:
        return '{"boolValue":false}'
    if isinstance(value, str):
        return f'{{"stringValue":{_text(value)}}}'
    if isinstance(value, float):
        return f'{{"doubleValue":{_number(value)}}}'
    return f'{{"intValue":"{value}"}}'


def _number(value: float) -> str:
    if math.isfinite(value):
        return float.__repr__(value)
    return '"NaN"' if math.isnan(value) else '"Infinity"' if value > 0 else '"-Infinity"'


@lru_cache(maxsize=4096)
def _text(text: str) -> str:
    """A name or a word as JSON; there are few of them, and they come again."""
    return json.dumps(text)
