"""Backoff grows while a process keeps dying and forgets once it has lived."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from deploy.restart import RestartPolicy, next_delay

POLICY = RestartPolicy(initial_s=1.0, factor=2.0, maximum_s=10.0, healthy_after_s=60.0)


def test_delays_double_up_to_the_maximum() -> None:
    delays, delay = [], 0.0
    for _ in range(6):
        delay = next_delay(POLICY, delay, lived_s=0.1)
        delays.append(delay)
    assert delays == [1.0, 2.0, 4.0, 8.0, 10.0, 10.0]


def test_a_healthy_life_starts_over() -> None:
    assert next_delay(POLICY, 10.0, lived_s=60.0) == 1.0


@given(st.one_of(st.just(0.0), st.floats(1, 10)), st.floats(0, 1e6))
def test_a_delay_stays_in_its_bounds(previous: float, lived: float) -> None:
    assert 1.0 <= next_delay(POLICY, previous, lived) <= 10.0
