"""The token bucket."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from controlplane.policy.rates import Rate, TokenBucket

SECOND = 1_000_000_000


def test_a_burst_is_let_through_and_then_so_many_a_second() -> None:
    bucket = TokenBucket(Rate(10.0, 3))
    assert [bucket.take(5) for _ in range(3)] == [0, 0, 0]
    assert bucket.take(5) == SECOND // 10
    assert bucket.take(5 + SECOND // 10 - 1) == 1
    assert bucket.take(5 + SECOND // 10) == 0
    assert bucket.take(5 + SECOND // 10) > 0


def test_rest_earns_no_more_than_the_burst() -> None:
    bucket = TokenBucket(Rate(1.0, 2))
    later = 3600 * SECOND
    assert [bucket.take(later) == 0 for _ in range(4)] == [True, True, False, False]


def test_another_rate_fills_no_bucket() -> None:
    now = 3600 * SECOND
    bucket = TokenBucket(Rate(2.0, 2))
    passed = 0
    for turn in range(40):
        bucket = TokenBucket(Rate(2.0 + turn % 2, 2), bucket)
        passed += bucket.take(now) == 0
    assert passed == 2


def test_no_rate_is_no_bound() -> None:
    assert not Rate().bounded and Rate(0.5, 1).bounded


@given(
    per_second=st.floats(0.1, 1000.0),
    burst=st.integers(1, 50),
    gaps=st.lists(st.integers(0, SECOND), min_size=1, max_size=60),
)
def test_no_window_holds_more_than_burst_and_rate_allow(
    per_second: float, burst: int, gaps: list[int]
) -> None:
    bucket = TokenBucket(Rate(per_second, burst))
    now = 0
    asked: list[int] = []
    passed: list[int] = []
    for gap in gaps:
        now += gap
        wait = bucket.take(now)
        asked.append(now)
        if wait == 0:
            passed.append(now)
        else:
            # When it says a request may come, it may.
            again = TokenBucket(bucket.rate)
            for each in asked:
                again.take(each)
            assert again.take(now + wait) == 0
    for first in range(len(passed)):
        for last in range(first, len(passed)):
            seconds = (passed[last] - passed[first]) / SECOND
            assert last - first + 1 <= burst + seconds * per_second * 1.001 + 1e-6
