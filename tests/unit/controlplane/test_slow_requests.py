"""The ring of timelines that a person may look at."""

from __future__ import annotations

from controlplane.telemetry.timeline import REQUEST, Phase, RequestTimeline, SlowRequests


def timeline(number: int) -> RequestTimeline:
    return RequestTimeline(
        kind=REQUEST,
        model="m",
        tenant="",
        request_class="",
        outcome="answered",
        variant="best",
        worker_id="w1",
        arrived_ns=number,
        ended_ns=number + 7,
        deadline_ns=number + 9,
        wall_ms=0,
        trace_id="",
        phases=(Phase("orchid.queue", number, number + 7),),
        attributes={},
    )


def test_the_latest_are_kept_and_come_first() -> None:
    ring = SlowRequests(3)
    for number in range(5):
        ring.add(timeline(number))
    assert len(ring) == 3
    assert [each.arrived_ns for each in ring.recent()] == [4, 3, 2]
    assert ring.recent()[0].total_ns == 7
