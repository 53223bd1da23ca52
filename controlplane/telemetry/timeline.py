"""A finished request as a value: its phases, what was decided, how it ended. Pure.

Spans, and whoever shows requests to a person, are made of these. Nothing here holds content.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

AttributeValue = str | bool | int | float
Attributes = Mapping[str, AttributeValue]

# Kinds of timelines, which name the spans of whole requests too.
REQUEST = "orchid.request"
GENERATION = "orchid.generate"

_MOST_KEPT = 64


class Phase(NamedTuple):
    """A part of a request's time, in ns of the control plane's monotonic clock."""

    name: str
    begun_ns: int
    ended_ns: int


@dataclass(frozen=True, slots=True)
class RequestTimeline:
    """One request from its arrival to its end; times in ns of the monotonic clock.

    `kind` is REQUEST or GENERATION, `outcome` a word of `ends.OUTCOMES`, `wall_ms` the date of
    the arrival in ms since 1970. `phases` follow each other and may leave gaps. `trace_id` is
    in hexadecimal digits, empty for a request that was not recorded. Names are cut to 64
    characters. `deadline_ns` is a time like the others; `attributes` say what was decided.
    """

    kind: str
    model: str
    tenant: str
    request_class: str
    outcome: str
    variant: str
    worker_id: str
    arrived_ns: int
    ended_ns: int
    deadline_ns: int
    wall_ms: int
    trace_id: str
    phases: tuple[Phase, ...]
    attributes: Attributes

    @property
    def total_ns(self) -> int:
        """From arrival to end."""
        return self.ended_ns - self.arrived_ns


class SlowRequests:
    """The last timelines worth a look: slow, late, refused or failed ones."""

    def __init__(self, most: int = _MOST_KEPT) -> None:
        self._kept: deque[RequestTimeline] = deque(maxlen=most)

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, timeline: RequestTimeline) -> None:
        """Keep one; the oldest goes when there are too many."""
        self._kept.append(timeline)

    def recent(self) -> tuple[RequestTimeline, ...]:
        """What is kept, the newest first."""
        return tuple(reversed(self._kept))
