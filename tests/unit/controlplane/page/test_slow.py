"""Slow requests as rows: their phases in order, the run told apart, no more than are read."""

from typing import Any

from controlplane.page.slow import MOST_SHOWN, slow_rows
from controlplane.telemetry.requests import DISPATCH, PREPROCESS, QUEUE
from controlplane.telemetry.timeline import GENERATION, REQUEST, Phase, RequestTimeline

MS = 1_000_000


def timeline(**changes: Any) -> RequestTimeline:
    fields: dict[str, Any] = {
        "kind": REQUEST,
        "model": "m",
        "tenant": "<b>",
        "request_class": "audit",
        "outcome": "answered",
        "variant": "best",
        "worker_id": "w1",
        "arrived_ns": 1000 * MS,
        "ended_ns": 1100 * MS,
        "deadline_ns": 1200 * MS,
        "wall_ms": 0,
        "trace_id": "",
        "phases": (
            Phase(PREPROCESS, 1000 * MS, 1001 * MS),
            Phase(QUEUE, 1001 * MS, 1040 * MS),
            Phase(DISPATCH, 1040 * MS, 1100 * MS),
        ),
        "attributes": {},
    }
    return RequestTimeline(**{**fields, **changes})


def test_a_row_tells_where_the_time_went() -> None:
    (row,) = slow_rows([timeline(attributes={"orchid.execute_ms": 50.0})], 2000 * MS)
    assert (row.kind, row.model, row.tenant, row.outcome) == ("request", "m", "<b>", "answered")
    assert (row.total_ms, row.deadline_ms, row.ago_s) == (100.0, 200.0, 0.9)
    assert [(phase.name, phase.start_ms, phase.ms) for phase in row.phases] == [
        ("preprocess", 0.0, 1.0),
        ("queue", 1.0, 39.0),
        ("dispatch", 40.0, 10.0),
        ("run", 50.0, 50.0),
    ]


def test_a_run_that_is_not_known_is_not_made_up() -> None:
    both = {"orchid.execute_ms": 50.0, "orchid.escalated": True}
    for attributes in ({}, {"orchid.execute_ms": 61.0}, both):
        (row,) = slow_rows([timeline(attributes=attributes)], 2000 * MS)
        assert [phase.name for phase in row.phases] == ["preprocess", "queue", "dispatch"]


def test_refusals_old_ones_and_too_many_are_left_out() -> None:
    assert slow_rows([timeline(outcome="refused")], 2000 * MS) == ()
    assert slow_rows([timeline()], 1100 * MS + 901 * 1000 * MS) == ()
    many = [timeline(model=f"m{k}", kind=GENERATION) for k in range(3 * MOST_SHOWN)]
    rows = slow_rows(many, 2000 * MS)
    assert [row.model for row in rows] == [f"m{k}" for k in range(MOST_SHOWN)]
    assert {row.kind for row in rows} == {"generation"}


def test_a_generation_is_read_then_written() -> None:
    told = {"orchid.queue_ms": 5.0, "orchid.first_token_ms": 70.0}
    (row,) = slow_rows([timeline(kind=GENERATION, attributes=told)], 2000 * MS)
    assert [(phase.name, phase.start_ms, phase.ms) for phase in row.phases] == [
        ("preprocess", 0.0, 1.0),
        ("queue", 1.0, 39.0),
        ("dispatch", 40.0, 5.0),
        ("prefill", 45.0, 25.0),
        ("decode", 70.0, 30.0),
    ]


def test_a_deadline_that_is_not_known_is_none() -> None:
    (row,) = slow_rows([timeline(deadline_ns=0, phases=())], 2000 * MS)
    assert (row.deadline_ms, row.phases) == (0.0, ())
