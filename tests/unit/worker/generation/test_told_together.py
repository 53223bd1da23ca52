"""Tokens that wait for the next ones, so that they are told in one message."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from tests.unit.worker.generation.held_loop import PATIENCE_S, Bench, Step, tokens
from worker.generation.records import Usage


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.ns = time.monotonic_ns()

    def __call__(self) -> int:
        return self.ns

    def move(self, milliseconds: int) -> None:
        """Some time passes."""
        self.ns += milliseconds * 1_000_000


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def bench(clock: Callable[[], int]) -> Iterator[Bench]:
    made = Bench(now_ns=clock)
    yield made
    made.stop()


def second_waits(bench: Bench) -> Step:
    """The first token of a generation is told at once, its second waits; returns the third step."""
    bench.step().end()
    second = bench.step()
    bench.until(lambda: tokens(bench.events[1]) == 1)
    second.end()
    third = bench.step()
    assert bench.waiting() == 1
    return third


def test_tokens_wait_for_the_next_ones_while_that_is_within_their_target(
    bench: Bench, clock: Clock
) -> None:
    bench.open(1, most=6, token_target_ns=50_000_000)
    third = second_waits(bench)
    clock.move(20)
    third.end()
    fourth = bench.step()
    assert bench.waiting() == 2
    # Another step would make it more than half of the target.
    clock.move(20)
    fourth.end()
    fifth = bench.step()
    bench.until(lambda: tokens(bench.events[1]) == 4)
    fifth.end()
    bench.step().end()
    # The last one brings all that is left, and the end.
    assert isinstance(bench.last(1), Usage)
    assert tokens(bench.events[1]) == 6
    bench.settled()


def test_no_token_waits_longer_than_anybody_in_the_step_can(bench: Bench) -> None:
    bench.open(1, most=50)
    bench.step().end()
    bench.open(2, most=50, token_target_ns=50_000_000)
    for _ in range(3):
        bench.step().end()
        # Nobody asked for a pace for the first: each of its tokens is told at once.
        held = bench.step()
        assert bench.waiting() == 0
        held.end()
    bench.engine.free_running = True
    bench.last(1)
    bench.last(2)
    bench.settled()


def test_what_waits_is_told_before_other_work_of_the_engine_thread(
    bench: Bench, clock: Clock
) -> None:
    bench.open(1, most=9, token_target_ns=50_000_000)
    third = second_waits(bench)
    asked = bench.loop.call(bench.waiting)
    # Longer than other work lets steps pass.
    clock.move(1000)
    third.end()
    assert asked.result(PATIENCE_S) == 0
    bench.until(lambda: tokens(bench.events[1]) >= 3)
    bench.engine.free_running = True
    bench.last(1)
    bench.settled()
