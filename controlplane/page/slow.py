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
        deadline_ms=round((timeline.deadline_ns - timeline.arrived_ns) / 1e6, 3),
        trace_id=timeline.trace_id,
        phases=tuple(_phases(timeline)),
    )


def _phases(timeline: RequestTimeline) -> Iterable[Phase]:
    """Its phases, the last dispatch divided by what the run on the worker took.

    The run ends where the dispatch does, but for the way back, which is short.
    """
    run_ns = int(float(timeline.attributes.get("orchid.execute_ms", 0.0)) * 1e6)
    last = max((k for k, p in enumerate(timeline.phases) if p.name == DISPATCH), default=-1)
    for number, phase in enumerate(timeline.phases):
        begun, ended = phase.begun_ns, phase.ended_ns
        start_ns = begun - timeline.arrived_ns
        if number == last and 0 < run_ns <= ended - begun:
            before = ended - begun - run_ns
            yield _phase(phase.name, start_ns, before)
            yield _phase("orchid.run", start_ns + before, run_ns)
        else:
            yield _phase(phase.name, start_ns, ended - begun)


def _phase(name: str, start_ns: int, ns: int) -> Phase:
    return Phase(name.removeprefix("orchid."), round(start_ns / 1e6, 3), round(ns / 1e6, 3))
