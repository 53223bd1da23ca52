"""One call on its way through the control plane, as far as it is recorded.

The door that takes a call begins its trace and makes it the current one of the task; whoever
works for the call adds spans; the door finishes it. All of it belongs to the event loop.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

from controlplane.telemetry.timeline import Attributes, AttributeValue
from protos.tracing.context import is_sampled, write_traceparent
from protos.tracing.spans import (
    NO_ATTRIBUTES,
    Kind,
    SpanEvent,
    SpanRecord,
    new_span_id,
)

__all__ = ["CURRENT", "CallTrace", "Kind", "Send", "is_sampled"]


class Send:
    """One dispatch to a worker: `what` was sent and when; `ended_ns` 0 while it runs."""

    __slots__ = ("begun_ns", "ended_ns", "fault", "span_id", "what")

    def __init__(self, span_id: int, begun_ns: int, what: Any) -> None:
        self.span_id = span_id
        self.begun_ns = begun_ns
        self.what = what
        self.ended_ns = 0
        self.fault = ""

    def end(self, now_ns: int, fault: str = "") -> None:
        """It ended; the first word counts."""
        if not self.ended_ns:
            self.ended_ns = now_ns
            self.fault = fault


class CallTrace:
    """The root span of a call that is recorded, and the spans in it.

    One that is not `recording` only remembers whose trace it would join, for the case that it
    turns out slow. `begun_ns` is when the call came, `handled` whether its message was read,
    `taken` whether somebody has it for his own (others get spans below), `inner` that it is below,
    `admitted_ns` when it was let in, `answered_ns` when its answer was there; 0: not yet.
    """

    __slots__ = (
        "_spans",
        "admitted_ns",
        "answered_ns",
        "attributes",
        "begun_ns",
        "events",
        "fault",
        "finished",
        "handled",
        "inner",
        "name",
        "parent_id",
        "recording",
        "sends",
        "span_id",
        "taken",
        "trace_id",
    )

    def __init__(
        self, name: str, trace_id: int, parent_id: int, begun_ns: int, *, recording: bool = True
    ) -> None:
        self.name = name
        self.trace_id = trace_id
        self.parent_id = parent_id
        self.span_id = new_span_id()
        self.begun_ns = begun_ns
        self.recording = recording
        self.admitted_ns = 0
        self.answered_ns = 0
        self.sends: list[Send] = []
        self.attributes: dict[str, AttributeValue] = {}
        self.events: list[SpanEvent] = []
        self.fault = ""
        self.finished = False
        self.handled = False
        self.inner = False
        self.taken = False
        self._spans: list[SpanRecord] = []

    @property
    def id(self) -> str:
        """The trace's id as people write it."""
        return f"{self.trace_id:032x}"

    def send(self, now_ns: int, what: Any = None) -> str:
        """A dispatch begins; returns the traceparent under which the worker joins it."""
        send = Send(new_span_id(), now_ns, what)
        self.sends.append(send)
        return write_traceparent(self.trace_id, send.span_id)

    def lost(self, what: Any, now_ns: int, fault: str) -> None:
        """The dispatch of `what` came to nothing."""
        for send in self.sends:
            if send.what is what:
                send.end(now_ns, fault)

    def add(
        self,
        name: str,
        begun_ns: int,
        ended_ns: int,
        attributes: Attributes = NO_ATTRIBUTES,
        *,
        kind: Kind = Kind.INTERNAL,
        span_id: int = 0,
        parent_id: int = 0,
        fault: str = "",
    ) -> int:
        """A part of the call has ended, or one of a part; returns its span's id."""
        span_id = span_id or new_span_id()
        self._spans.append(
            SpanRecord(
                name,
                self.trace_id,
                span_id,
                parent_id or self.span_id,
                begun_ns,
                max(begun_ns, ended_ns),
                kind,
                attributes,
                fault=fault,
            )
        )
        return span_id

    def happened(self, name: str, at_ns: int, attributes: Attributes = NO_ATTRIBUTES) -> None:
        """Something worth a mark happened."""
        self.events.append(SpanEvent(name, at_ns, attributes))

    def failed(self, fault: str) -> None:
        """There is no (whole) answer, for this reason, a stable word; the first one counts."""
        self.fault = self.fault or fault

    def records(self, ended_ns: int, kind: Kind = Kind.SERVER) -> list[SpanRecord]:
        """Every span of the call, the root first."""
        root = SpanRecord(
            self.name,
            self.trace_id,
            self.span_id,
            self.parent_id,
            self.begun_ns,
            ended_ns,
            kind,
            self.attributes,
            self.events,
            fault=self.fault,
        )
        return [root, *self._spans]


CURRENT: ContextVar[CallTrace | None] = ContextVar("orchid_call", default=None)
