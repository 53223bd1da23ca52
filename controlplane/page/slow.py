"""Slow requests as rows of the page: where the time of each went."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from controlplane.page.records import Phase, SlowRequest
from controlplane.telemetry.requests import DISPATCH
from controlplane.telemetry.timeline import GENERATION, RequestTimeline

# As many as a person reads.
MOST_SHOWN = 12
_KEPT_NS = 900 * 1_000_000_000
# They took no time of anybody's, and are counted elsewhere.
_LEFT_OUT = "refused"


def slow_rows(timelines: Iterable[RequestTimeline], now_ns: int) -> tuple[SlowRequest, ...]:
    """The last quarter of an hour's slow, late and failed requests, the newest first."""
    lately = (
        each
        for each in timelines
        if each.outcome != _LEFT_OUT and now_ns - each.ended_ns <= _KEPT_NS
    )
    return tuple(_row(each, now_ns) for each in islice(lately, MOST_SHOWN))


def _row(timeline: RequestTimeline, now_ns: int) -> SlowRequest:
    return SlowRequest(
        kind="generation" if timeline.kind == GENERATION else "request",
        model=timeline.model,
        variant=timeline.variant,
        worker=timeline.worker_id,
        tenant=timeline.tenant,
        request_class=timeline.request_class,
        outcome=timeline.outcome,
        ago_s=round((now_ns - timeline.ended_ns) / 1e9, 3),
        total_ms=round(timeline.total_ns / 1e6, 3),
        deadline_ms=round(max(0, timeline.deadline_ns - timeline.arrived_ns) / 1e6, 3),
        trace_id=timeline.trace_id,
        phases=tuple(_phases(timeline)),
    )


def _phases(timeline: RequestTimeline) -> Iterable[Phase]:
    """Its phases, the last dispatch divided as far as its worker has told of it."""
    last = max((k for k, p in enumerate(timeline.phases) if p.name == DISPATCH), default=-1)
    for number, phase in enumerate(timeline.phases):
        marks = [(phase.name, phase.begun_ns)]
        if number == last:
            marks += _marks(timeline, phase.begun_ns, phase.ended_ns)
        ends = [begun for _, begun in marks[1:]] + [phase.ended_ns]
        for (name, begun_ns), ended_ns in zip(marks, ends, strict=True):
            yield Phase(
                name.removeprefix("orchid."),
                round((begun_ns - timeline.arrived_ns) / 1e6, 3),
                round((ended_ns - begun_ns) / 1e6, 3),
            )


def _marks(timeline: RequestTimeline, begun_ns: int, ended_ns: int) -> list[tuple[str, int]]:
    """What began when within the last dispatch, as far as that is known.

    A run ends where its dispatch does, but for the way back, which is short. A generation is
    read from its place on the worker until its first token, then written.
    """

    def told_ns(name: str) -> int:
        return int(float(timeline.attributes.get(name, 0.0)) * 1e6)

    if timeline.kind == GENERATION:
        first_ns = told_ns("orchid.first_token_ms")
        if not first_ns:
            return []
        placed_ns = begun_ns + told_ns("orchid.queue_ms")
        found = [("prefill", placed_ns), ("decode", timeline.arrived_ns + first_ns)]
    else:
        run_ns = told_ns("orchid.execute_ms")
        found = [("run", ended_ns - run_ns)] if run_ns else []
    times = [begun_ns, *(begun for _, begun in found), ended_ns]
    return found if times == sorted(times) else []
