"""Explicit deadlines: what is asked for, however little, is never none."""

from __future__ import annotations

import pytest

from controlplane.errors import InvalidRequest, TooLate
from controlplane.http.calls import Call, Settings
from controlplane.rpc.asks import MAX_DEADLINE_MS, explicit_deadline

MS = 1_000_000


@pytest.mark.parametrize(
    ("asked_ms", "ns"), [(0, 0), (1, MS), (0.5, MS // 2), (1e-9, 1), (5e-324, 1)]
)
def test_a_little_time_is_a_little_time(asked_ms: float, ns: int) -> None:
    assert explicit_deadline(asked_ms, unit_ns=MS, field="deadline_ms") == ns
    assert called_with(str(asked_ms)).deadline_ns() == ns


def test_times_that_have_passed_or_are_no_times_are_refused() -> None:
    with pytest.raises(TooLate):
        explicit_deadline(-1e-9, unit_ns=MS, field="deadline_ms")
    for wrong in (float("nan"), float("inf"), MAX_DEADLINE_MS * 1.01):
        with pytest.raises(InvalidRequest):
            explicit_deadline(wrong, unit_ns=MS, field="deadline_ms")


def called_with(deadline: str) -> Call:
    async def receive() -> dict[str, object]:
        raise NotImplementedError

    settings = Settings(
        max_body=1, body_timeout_s=1.0, now_ns=lambda: 0, wall_s=lambda: 0, new_id=lambda: "id"
    )
    headers = [(b"x-orchid-deadline-ms", deadline.encode())]
    return Call({"type": "http", "headers": headers}, receive, settings)
