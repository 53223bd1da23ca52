"""Decides which calls are recorded, and hands on what was recorded of them.

A call is recorded when its caller's trace context says so, or by a share of those that bring
none (head), both at a bounded rate; or, at another one, when it turned out slow, late, refused or
failed (tail). The tail is decided from times that every request keeps anyway.
"""

from __future__ import annotations

from collections.abc import Callable

from controlplane.config import TelemetryConfig
from controlplane.telemetry.budget import Budget
from controlplane.telemetry.timeline import RequestTimeline, SlowRequests
from controlplane.telemetry.trace import CURRENT, CallTrace
from protos.tracing.context import in_share, is_sampled, read_traceparent, trace_bound
from protos.tracing.spans import Kind, SpanSink, new_trace_id

STREAM = "orchid.stream"

_MS = 1_000_000
# How calls end that are nobody's fault here, and so not worth a place among the slow ones.
_USUAL = frozenset(("answered", "cancelled", "invalid", "not-found", "unsatisfiable"))


class Telemetry:
    """Lives on the event loop. `sink` None records nothing; slow requests are kept all the same.

    `wall_offset_ns` turns the process's monotonic clock into wall-clock time. `slow_ns` is from
    when on an answer (of a generation: its first token) is slow.
    """

    def __init__(
        self, config: TelemetryConfig, *, wall_offset_ns: int, sink: SpanSink | None = None
    ) -> None:
        self.slow = SlowRequests()
        self.slow_ns = config.slow_ms * _MS
        self.wall_offset_ns = wall_offset_ns
        self._sink = sink
        self._bound = trace_bound(config.sample_ratio)
        self._budget = Budget(config.slow_per_s)
        # One each: callers who ask for much leave the share what it has.
        self._asked = Budget(config.traces_per_s)
        self._drawn = Budget(config.traces_per_s)
        self._tail = config.slow_per_s > 0.0
        # Asked before a call is recorded that nobody asked to record.
        self.optional_work_allowed: Callable[[], bool] = _always

    @property
    def recording(self) -> bool:
        """Whether any call can be recorded at all."""
        return self._sink is not None

    def begin(
        self, name: str, traceparent: str, now_ns: int, *, head: bool = True
    ) -> CallTrace | None:
        """The trace of a call that comes; None when nothing of it is recorded.

        `head` lets the configured share of calls that bring no context be recorded. Beyond its rate
        a call whose caller asks for it is taken for one whose caller does not.
        """
        if self._sink is None:
            return None
        context = read_traceparent(traceparent) if traceparent else None
        if context is not None:
            trace_id, span_id, sampled = context
            sampled = sampled and self._asked.take(now_ns)
            if not (sampled or self._tail or name == STREAM):
                return None
            return CallTrace(name, trace_id, span_id, now_ns, recording=sampled)
        if not (head and self._bound):
            return None
        trace_id = new_trace_id()
        if not in_share(trace_id, self._bound) or not self.optional_work_allowed():
            return None
        if not self._drawn.take(now_ns):
            return None
        return CallTrace(name, trace_id, 0, now_ns)

    def inside(self, name: str, parent: CallTrace | None, now_ns: int) -> CallTrace | None:
        """The trace of one message of a stream, in that of its stream; see `begin`.

        Each counts: a stream that is recorded is no way around the rate.
        """
        if self._sink is None:
            return None
        if parent is None:
            return self.begin(name, "", now_ns)
        recording = parent.recording and self._asked.take(now_ns)
        above = parent.span_id if parent.recording else parent.parent_id
        return CallTrace(name, parent.trace_id, above, now_ns, recording=recording)

    def passed_on(self, traceparent: str, now_ns: int) -> str:
        """A caller's context for the worker to join, where nothing can be recorded here.

        Empty when there is nothing to join, or too much.
        """
        if self.recording or not is_sampled(traceparent):
            return ""
        return traceparent if self._asked.take(now_ns) else ""

    def own(self, name: str, now_ns: int) -> CallTrace | None:
        """What records one of the things that the running task's call asks for.

        That is the call's trace, or, where another has that for his own, one inside it, which
        `finish_own` has to end.
        """
        trace = CURRENT.get()
        if trace is None or not trace.taken:
            if trace is not None:
                trace.taken = True
            return trace
        inner = self.inside(name, trace, now_ns)
        if inner is not None:
            inner.inner = True
        return inner

    def finish_own(self, trace: CallTrace | None, now_ns: int) -> None:
        """Finish a trace inside that of its call; others end with the call."""
        if trace is not None and trace.inner:
            self.finish(trace, now_ns, Kind.INTERNAL)

    def finish(self, trace: CallTrace, now_ns: int, kind: Kind = Kind.SERVER) -> None:
        """The call has ended: its spans go out, once."""
        if self._sink is None or trace.finished or not trace.recording:
            return
        trace.finished = True
        if trace.answered_ns:
            trace.add("orchid.respond", trace.answered_ns, now_ns)
        self._sink.emit(trace.records(now_ns, kind))

    def worth(self, outcome: str, now_ns: int, *, slow: bool) -> bool:
        """Whether a request that ends now is kept among the slow ones; counts it if so."""
        return (slow or outcome not in _USUAL) and self._tail and self._budget.take(now_ns)

    def late_trace(self, name: str, trace: CallTrace | None, begun_ns: int) -> CallTrace | None:
        """A trace for a request that turned out slow after nobody had asked for one."""
        if self._sink is None:
            return None
        if trace is not None:
            late = CallTrace(name, trace.trace_id, trace.parent_id, begun_ns)
        else:
            late = CallTrace(name, new_trace_id(), 0, begun_ns)
        late.attributes["orchid.sampled_by"] = "tail"
        return late

    def keep(self, timeline: RequestTimeline) -> None:
        """Keep a slow request for whoever looks."""
        self.slow.add(timeline)

    def wall_ms(self, at_ns: int) -> int:
        """A time of the monotonic clock as ms since 1970."""
        return (at_ns + self.wall_offset_ns) // _MS

    def close(self) -> None:
        """Send what is left and stop."""
        if self._sink is not None:
            self._sink.close()


def _always() -> bool:
    return True
