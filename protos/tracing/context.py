"""W3C trace contexts, as `traceparent` carries them. Pure.

https://www.w3.org/TR/trace-context/
"""

from __future__ import annotations

import re
from typing import NamedTuple

TRACEPARENT = "traceparent"

_SAMPLED = 0x01
# Later versions may add fields; what is known of them stands in front.
_FORM = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.DOTALL)
# Which traces a share of them takes is decided by this part of their ids, as OpenTelemetry does.
_RATIO_BITS = 64
_RATIO_MASK = (1 << _RATIO_BITS) - 1


class TraceContext(NamedTuple):
    """A trace and a span in it; `sampled` says that the span is recorded."""

    trace_id: int
    span_id: int
    sampled: bool


def read_traceparent(text: str) -> TraceContext | None:
    """The context that a header carries; None when it is malformed."""
    found = _FORM.fullmatch(text)
    if found is None:
        return None
    version, trace, span, flags, more = found.groups()
    trace_id, span_id = int(trace, 16), int(span, 16)
    if version == "ff" or (version == "00" and more) or not trace_id or not span_id:
        return None
    return TraceContext(trace_id, span_id, bool(int(flags, 16) & _SAMPLED))


def write_traceparent(trace_id: int, span_id: int) -> str:
    """The header of a span that is recorded."""
    return f"00-{trace_id:032x}-{span_id:016x}-01"


def is_sampled(text: str) -> bool:
    """Whether a header asks to be recorded; a malformed one does not."""
    context = read_traceparent(text) if text else None
    return context is not None and context.sampled


def trace_bound(share: float) -> int:
    """What `in_share` compares with, for a share of 0 to 1."""
    return round(share * (1 << _RATIO_BITS))


def in_share(trace_id: int, bound: int) -> bool:
    """Whether a trace is of the share: the same answer in every process."""
    return trace_id & _RATIO_MASK < bound
