"""Short runs that take place where they are submitted, on the event loop."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from tests.unit.worker.engine_bench import PATIENCE_S, Bench, kinds
from worker.loop import LONGEST_IN_PLACE_NS


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.loop.stop()


def test_a_short_run_takes_place_where_it_is_submitted(bench: Bench) -> None:
    bench.wait_until_asleep()
    before = bench.wakeups
    bench.loop.submit(bench.batch(1, 2), bench.outcomes.append, in_place=True)
    assert bench.runner.executed == [1, 2]
    assert bench.runner.threads == [threading.current_thread()]
    (outcome,) = bench.outcomes
    assert bench.wakeups == before
    assert kinds(outcome) == ["ok", "ok"] and outcome.executed_items == 2
    state = bench.loop.state()
    assert (state.queued_items, state.running_items, state.completed_items) == (0, 0, 2)


def test_nothing_runs_in_place_while_the_engine_thread_is_busy(bench: Bench) -> None:
    bench.hold()
    bench.loop.submit(bench.batch(1), bench.outcomes.append, in_place=True)
    assert bench.runner.executed == [1000]
    bench.runner.let_go.set()
    bench.take(2)
    assert threading.current_thread() not in bench.runner.threads


def test_what_is_late_is_not_executed_in_place_either(bench: Bench) -> None:
    bench.wait_until_asleep()
    late = bench.batch(1, deadline_ns=bench.now)
    bench.loop.submit(late, bench.outcomes.append, in_place=True)
    (outcome,) = bench.take(1)
    assert kinds(outcome) == ["Expired"] and bench.runner.executed == []
    assert bench.loop.state().queued_items == 0


def test_a_fault_in_place_becomes_the_outcome(bench: Bench) -> None:
    bench.wait_until_asleep()
    for variant in ("faulty", "wrong"):
        batch = bench.batch(1, variant=variant)
        bench.loop.submit(batch, bench.outcomes.append, in_place=True)
    first, second = bench.outcomes
    assert kinds(first) == ["EngineFault"] and kinds(second) == ["EngineFault"]


def test_after_a_long_run_in_place_the_engine_thread_runs_all_for_a_while(bench: Bench) -> None:
    bench.wait_until_asleep()
    bench.runner.advance = lambda: setattr(bench, "cpu", bench.cpu + LONGEST_IN_PLACE_NS + 1)
    bench.loop.submit(bench.batch(1), bench.outcomes.append, in_place=True)
    bench.runner.advance = None
    bench.loop.submit(bench.batch(2), bench.outcomes.append, in_place=True)
    bench.until(2)
    here = threading.current_thread()
    assert bench.runner.threads[0] is here and bench.runner.threads[1] is not here
    bench.wait_until_asleep()
    bench.now += 2_000_000_000
    bench.loop.submit(bench.batch(3), bench.outcomes.append, in_place=True)
    assert len(bench.outcomes) == 3
    assert bench.runner.threads[2] is here


def test_what_comes_during_a_run_in_place_waits_for_its_end(bench: Bench) -> None:
    bench.wait_until_asleep()
    thread = threading.Thread(
        target=bench.loop.submit,
        args=(bench.batch(1, variant="held"), bench.outcomes.append),
        kwargs={"in_place": True},
    )
    thread.start()
    assert bench.runner.started.get(timeout=PATIENCE_S) == (1,)
    called = bench.loop.call(lambda: bench.loop.state().running_items, in_turn=True)
    bench.loop.submit(bench.batch(2), bench.outcomes.append, in_place=True)
    assert bench.loop.state().running_items == 1 and not called.done()
    bench.runner.let_go.set()
    assert called.result(PATIENCE_S) == 0
    thread.join(PATIENCE_S)
    assert [outcome.batch.batch_id for outcome in bench.until(2)] == [1, 2]


def test_a_run_in_place_can_be_abandoned(bench: Bench) -> None:
    bench.wait_until_asleep()
    thread = threading.Thread(
        target=bench.loop.submit,
        args=(bench.batch(1, variant="held"), bench.outcomes.append),
        kwargs={"in_place": True},
    )
    thread.start()
    assert bench.runner.started.get(timeout=PATIENCE_S) == (1,)
    assert bench.loop.abandon() == 1
    thread.join(PATIENCE_S)
    (outcome,) = bench.until(1)
    assert kinds(outcome) == ["Unavailable"]
