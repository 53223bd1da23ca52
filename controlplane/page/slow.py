"""Slow requests as rows of the page: where the time of each went."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from controlplane.page.records import Phase, SlowRequest
from controlplane.telemetry.requests import DISPATCH
from controlplane.telemetry.timeline import GENERATION, RequestTimeline, told

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
        inside = []
        if number == last:
            attributes, arrived_ns = timeline.attributes, timeline.arrived_ns
            inside = told(timeline.kind, attributes, arrived_ns, phase.begun_ns, phase.ended_ns)
        until_ns = inside[0].begun_ns if inside else phase.ended_ns
        for name, begun_ns, ended_ns in (phase._replace(ended_ns=until_ns), *inside):
            yield Phase(
                name.removeprefix("orchid."),
                round((begun_ns - timeline.arrived_ns) / 1e6, 3),
                round((ended_ns - begun_ns) / 1e6, 3),
            )
