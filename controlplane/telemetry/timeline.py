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

# Parts of a dispatch that its worker tells of.
RUN = "orchid.run"
PREFILL = "orchid.prefill"
DECODE = "orchid.decode"

_MOST_KEPT = 64


class Phase(NamedTuple):
    """A part of a request's time, in ns of the control plane's monotonic clock."""

    name: str
    begun_ns: int
    ended_ns: int


def told(
    kind: str, attributes: Attributes, arrived_ns: int, begun_ns: int, ended_ns: int
) -> list[Phase]:
    """What the last dispatch was made of, as far as its worker has told; up to its end.

    A run ends where its dispatch does, but for the way back, which is short. A generation is
    read from its place on the worker until its first token, then written.
    """

    def said_ns(name: str) -> int:
        return int(float(attributes.get(name, 0.0)) * 1e6)

    if kind == GENERATION:
        first_ns = said_ns("orchid.first_token_ms")
        if not first_ns:
            return []
        first_ns += arrived_ns
        placed_ns = begun_ns + said_ns("orchid.queue_ms")
        found = [Phase(PREFILL, placed_ns, first_ns), Phase(DECODE, first_ns, ended_ns)]
    else:
        # Of a cascade only the sum of its runs is known.
        run_ns = 0 if attributes.get("orchid.escalated") else said_ns("orchid.execute_ms")
        found = [Phase(RUN, ended_ns - run_ns, ended_ns)] if run_ns else []
    times = [begun_ns, *[each.begun_ns for each in found], ended_ns]
    return found if times == sorted(times) else []


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
