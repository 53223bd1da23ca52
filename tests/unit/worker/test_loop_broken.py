"""Faults of ours outside of any run: they end the loop, and whoever waits for it is told."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.unit.worker.engine_bench import CONTENT, PATIENCE_S, Bench, Flag, kinds
from worker.errors import EngineFault

REASON = "the engine loop failed with ZeroDivisionError"


class Tokens:
    """Makes tokens until told to fail."""

    def __init__(self) -> None:
        self.fail = False

    def __call__(self) -> Flag:
        if self.fail:
            raise ZeroDivisionError(CONTENT)
        return Flag()


@pytest.fixture
def tokens() -> Tokens:
    return Tokens()


@pytest.fixture
def bench(tokens: Tokens) -> Iterator[Bench]:
    made = Bench(make_token=tokens)
    yield made
    made.loop.stop()


def is_over(bench: Bench) -> None:
    """Everything new is refused with the reason, and nothing is left that is counted."""
    before = len(bench.outcomes)
    bench.loop.submit(bench.batch(77), bench.outcomes.append)
    (refused,) = bench.take(1)[before:]
    assert [str(outcome) for outcome in refused.outcomes] == [REASON]
    assert kinds(refused) == ["EngineFault"]
    with pytest.raises(EngineFault, match=REASON):
        bench.loop.call(lambda: None).result(PATIENCE_S)
    state = bench.loop.state()
    assert (state.queued_items, state.running_items) == (0, 0)
    assert bench.broken == [REASON]
    idle: list[bool] = []
    bench.loop.when_idle(lambda: idle.append(True))
    bench.drain_callbacks()
    assert idle == [True]


def test_whatever_waits_is_answered(
    bench: Bench, tokens: Tokens, caplog: pytest.LogCaptureFixture
) -> None:
    bench.hold()
    tokens.fail = True
    bench.loop.submit(bench.batch(1, 2), bench.outcomes.append)
    bench.loop.submit(bench.batch(3), bench.outcomes.append)
    calls = [bench.loop.call(lambda: 1), bench.loop.call(lambda: 1, in_turn=True)]
    bench.runner.let_go.set()
    outcomes = {outcome.batch.batch_id: kinds(outcome) for outcome in bench.take(3)}
    assert outcomes == {1000: ["ok"], 1: ["EngineFault", "EngineFault"], 3: ["EngineFault"]}
    for call in calls:
        with pytest.raises(EngineFault, match=REASON):
            call.result(PATIENCE_S)
    assert bench.runner.executed == [1000]
    assert CONTENT not in caplog.text and "the engine loop failed" in caplog.text
    is_over(bench)


def test_a_run_in_place_is_answered_where_it_was_submitted(bench: Bench, tokens: Tokens) -> None:
    bench.wait_until_asleep()
    tokens.fail = True
    bench.loop.submit(bench.batch(1), bench.outcomes.append, in_place=True)
    assert [kinds(outcome) for outcome in bench.outcomes] == [["EngineFault"]]
    is_over(bench)


def test_a_clock_that_fails_after_a_run_in_place_leaves_nobody_waiting(bench: Bench) -> None:
    bench.wait_until_asleep()

    def fail() -> None:
        def cpu_ns() -> int:
            raise ZeroDivisionError(CONTENT)

        clocks: Any = bench.loop._clocks
        bench.loop._clocks = type(clocks)(now_ns=clocks.now_ns, cpu_ns=cpu_ns)

    bench.runner.advance = fail
    bench.loop.submit(bench.batch(1), bench.outcomes.append, in_place=True)
    assert [kinds(outcome) for outcome in bench.outcomes] == [["EngineFault"]]
    is_over(bench)


def test_an_idle_engine_that_cannot_tidy_up_is_over() -> None:
    bench = Bench(when_idle=failing)
    try:
        until(lambda: bool(bench.broken))
        is_over(bench)
    finally:
        bench.loop.stop()


def test_a_run_in_place_that_outlives_the_loop_is_answered_once() -> None:
    began = threading.Event()

    def tidy_up() -> None:
        began.wait(PATIENCE_S)
        raise ZeroDivisionError(CONTENT)

    bench = Bench(when_idle=tidy_up)

    def advance() -> None:
        began.set()
        until(lambda: bool(bench.broken))

    try:
        bench.wait_until_asleep()
        bench.runner.advance = advance
        bench.loop.submit(bench.batch(1), bench.outcomes.append, in_place=True)
        bench.drain_callbacks()
        assert bench.runner.executed == [1]
        assert [kinds(outcome) for outcome in bench.outcomes] == [["EngineFault"]]
        is_over(bench)
    finally:
        bench.loop.stop()


def failing() -> None:
    raise ZeroDivisionError(CONTENT)


def until(holds: Callable[[], bool]) -> None:
    for _ in range(10_000):
        if holds():
            return
        threading.Event().wait(0.001)
    raise AssertionError("it never came to that")
