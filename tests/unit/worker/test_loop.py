"""The engine loop alone: a scripted runner, no model, no sleeping."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.worker.engine_bench import CONTENT, FAR, PATIENCE_S, Bench, kinds
from worker.errors import InvalidInput, WorkerError
from worker.records import Batch, BatchOutcome, Item
from worker.refusals import Cancelled, Expired, Unavailable


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.loop.stop()


def test_every_item_gets_its_own_answer(bench: Bench) -> None:
    bench.loop.submit(bench.batch(3, 1, 2), bench.outcomes.append)
    (outcome,) = bench.take(1)
    ids = [o["id"][0] for o in outcome.outcomes if not isinstance(o, WorkerError)]
    assert ids == [3, 1, 2]
    assert (outcome.executed_items, outcome.tokens) == (3, 3)


def test_the_bound_is_exact(bench: Bench) -> None:
    bench.hold()
    for number in range(8):
        bench.loop.submit(bench.batch(number), bench.outcomes.append)
    assert bench.loop.state().queued_items == 8
    bench.loop.submit(bench.batch(8), bench.outcomes.append)
    (refused,) = bench.take(1)
    assert kinds(refused) == ["Unavailable"]
    bench.runner.let_go.set()
    assert all(kinds(outcome) == ["ok"] for outcome in bench.take(9)[1:])


def test_a_batch_larger_than_the_bound_never_fits(bench: Bench) -> None:
    bench.loop.submit(bench.batch(*range(9)), bench.outcomes.append)
    (outcome,) = bench.take(1)
    assert all(isinstance(o, InvalidInput) for o in outcome.outcomes)


def test_a_batch_is_taken_whole_or_not_at_all(bench: Bench) -> None:
    bench.hold()
    bench.loop.submit(bench.batch(*range(7)), bench.outcomes.append)
    bench.loop.submit(bench.batch(10, 11), bench.outcomes.append)
    (refused,) = bench.take(1)
    assert kinds(refused) == ["Unavailable", "Unavailable"]
    assert bench.loop.state().queued_items == 7


def test_expired_items_are_answered_and_never_executed(bench: Bench) -> None:
    late = Item(item_id=1, deadline_ns=bench.now)
    good = Item(item_id=2, deadline_ns=FAR)
    bench.loop.submit(Batch(1, "m", "plain", (late, good), bench.now), bench.outcomes.append)
    (outcome,) = bench.take(1)
    assert kinds(outcome) == ["Expired", "ok"]
    assert bench.runner.executed == [2]
    assert bench.loop.state().expired_items_executed == 0


def test_a_waiting_batch_is_answered_at_its_deadline_not_when_the_run_ends(bench: Bench) -> None:
    bench.hold()
    bench.loop.submit(bench.batch(1, deadline_ns=5_000), bench.outcomes.append)
    bench.loop.submit(bench.batch(2, deadline_ns=9_000), bench.outcomes.append)
    assert bench.loop.expire(4_999) == 5_000
    assert bench.loop.expire(5_000) == 9_000
    (outcome,) = bench.take(1)
    assert outcome.batch.batch_id == 1 and kinds(outcome) == ["Expired"]
    assert outcome.executed_items == 0 and outcome.run_ns == 0
    assert bench.loop.state().queued_items == 1


def test_a_run_ends_when_all_its_items_are_late(bench: Bench) -> None:
    items = (Item(item_id=1, deadline_ns=5_000), Item(item_id=2, deadline_ns=6_000))
    bench.loop.submit(Batch(1, "m", "held", items, bench.now), bench.outcomes.append)
    bench.runner.started.get(timeout=PATIENCE_S)
    assert bench.loop.expire(5_500) == 6_000
    assert bench.loop.expire(6_000) is None
    (outcome,) = bench.take(1)
    assert kinds(outcome) == ["Expired", "Expired"] and outcome.executed_items == 2


def test_cancelled_waiting_work_is_dropped(bench: Bench) -> None:
    bench.hold()
    job = bench.loop.submit(bench.batch(1, 2), bench.outcomes.append)
    bench.loop.cancel(job, [1])
    assert bench.loop.state().queued_items == 1
    bench.loop.cancel(job, [2])
    (outcome,) = bench.take(1)
    assert kinds(outcome) == ["Cancelled", "Cancelled"]
    assert bench.loop.state().queued_items == 0
    bench.runner.let_go.set()
    bench.take(1)
    assert bench.runner.executed == [1000]


def test_a_run_ends_when_all_its_items_are_cancelled(bench: Bench) -> None:
    job = bench.loop.submit(bench.batch(1, 2, variant="held"), bench.outcomes.append)
    bench.runner.started.get(timeout=PATIENCE_S)
    bench.loop.cancel(job, [1])
    assert bench.outcomes == [] and bench.loop.state().running_items == 2
    bench.loop.cancel(job, [2])
    (outcome,) = bench.take(1)
    assert kinds(outcome) == ["Cancelled", "Cancelled"]
    assert bench.loop.state().running_items == 0


def test_a_cancelled_item_of_a_run_does_not_end_the_others(bench: Bench) -> None:
    job = bench.loop.submit(bench.batch(1, 2, variant="held"), bench.outcomes.append)
    bench.runner.started.get(timeout=PATIENCE_S)
    bench.loop.cancel(job, [1])
    bench.runner.let_go.set()
    (outcome,) = bench.take(1)
    assert kinds(outcome) == ["Cancelled", "ok"]


def test_a_cancel_after_the_end_changes_nothing(bench: Bench) -> None:
    job = bench.loop.submit(bench.batch(1), bench.outcomes.append)
    bench.take(1)
    bench.loop.cancel(job)
    bench.loop.cancel(job, [1])
    assert bench.callbacks.empty() and bench.loop.state().queued_items == 0


def test_results_that_are_ready_together_share_one_wake_up(bench: Bench) -> None:
    bench.hold()
    for number in range(5):
        bench.loop.submit(bench.batch(number), bench.outcomes.append)
    bench.runner.let_go.set()
    # The engine thread has done everything before the call that is queued last returns.
    bench.loop.call(lambda: None, in_turn=True).result(PATIENCE_S)
    assert bench.wakeups == 1
    bench.take(6)
    assert bench.wakeups == 1


@pytest.mark.parametrize("variant", ["faulty", "wrong", "short"])
def test_a_failed_run_answers_its_items_and_the_thread_goes_on(
    bench: Bench, variant: str, caplog: pytest.LogCaptureFixture
) -> None:
    bench.loop.submit(bench.batch(1, 2, variant=variant), bench.outcomes.append)
    bench.loop.submit(bench.batch(3), bench.outcomes.append)
    failed, fine = bench.take(2)
    assert kinds(failed) == ["EngineFault", "EngineFault"] and kinds(fine) == ["ok"]
    assert CONTENT not in caplog.text + "".join(str(o) for o in failed.outcomes)


def test_items_that_came_faulty_do_not_count_and_do_not_run(bench: Bench) -> None:
    bad = Item(item_id=1, deadline_ns=FAR, fault=InvalidInput("no"))
    good = Item(item_id=2, deadline_ns=FAR)
    bench.loop.submit(Batch(1, "m", "plain", (bad, good), 0), bench.outcomes.append)
    bench.loop.submit(Batch(2, "m", "plain", (bad,), 0), bench.outcomes.append)
    bench.loop.submit(Batch(3, "m", "plain", (), 0), bench.outcomes.append)
    by_batch = {outcome.batch.batch_id: kinds(outcome) for outcome in bench.take(3)}
    assert by_batch == {1: ["InvalidInput", "ok"], 2: ["InvalidInput"], 3: []}
    assert bench.runner.executed == [2]


def test_drain_refuses_new_work_and_waits_for_the_old(bench: Bench) -> None:
    bench.hold()
    bench.loop.submit(bench.batch(1), bench.outcomes.append)
    idle: list[bool] = []
    assert bench.loop.drain() == 2
    bench.loop.when_idle(lambda: idle.append(True))
    bench.loop.submit(bench.batch(2), bench.outcomes.append)
    (refused,) = bench.take(1)
    assert kinds(refused) == ["Unavailable"] and idle == []
    bench.runner.let_go.set()
    bench.take(2)
    bench.drain_callbacks()
    assert idle == [True]


def test_abandoned_work_is_answered(bench: Bench) -> None:
    bench.hold()
    bench.loop.submit(bench.batch(1, 2), bench.outcomes.append)
    assert bench.loop.abandon() == 3
    outcomes = bench.take(2)
    assert {kind for outcome in outcomes for kind in kinds(outcome)} == {"Unavailable"}


def test_background_calls_let_batches_pass_but_not_for_ever(bench: Bench) -> None:
    bench.hold()
    order: list[str] = []
    done = bench.loop.call(lambda: order.append("background"))
    bench.loop.submit(bench.batch(1), lambda outcome: None)
    in_turn = bench.loop.call(lambda: order.append("in turn"), in_turn=True)
    bench.runner.let_go.set()
    in_turn.result(PATIENCE_S)
    done.result(PATIENCE_S)
    assert order == ["in turn", "background"]

    bench.runner.let_go.clear()
    bench.hold()
    done = bench.loop.call(lambda: order.append("impatient"))
    in_turn = bench.loop.call(lambda: order.append("after it"), in_turn=True)
    bench.now += 200_000_000
    bench.runner.let_go.set()
    in_turn.result(PATIENCE_S)
    assert order[2:] == ["impatient", "after it"]


def test_a_call_hands_back_its_error(bench: Bench) -> None:
    def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        bench.loop.call(fail).result(PATIENCE_S)


def test_stop_answers_what_is_left_and_cancels_calls() -> None:
    bench = Bench()
    bench.hold()
    bench.loop.submit(bench.batch(1), bench.outcomes.append)
    call = bench.loop.call(lambda: None)
    bench.loop.stop()
    bench.take(2)
    assert {kind for outcome in bench.outcomes for kind in kinds(outcome)} == {"Unavailable"}
    with pytest.raises(CancelledError):
        call.result(PATIENCE_S)
    assert bench.loop.call(lambda: None).cancelled()


def test_ten_thousand_cancels_leave_nothing_behind() -> None:
    bench = Bench(bound=64)
    answered = 0

    def count(outcome: BatchOutcome) -> None:
        nonlocal answered
        answered += len(outcome.outcomes)

    for number in range(10_000):
        job = bench.loop.submit(bench.batch(number), count)
        bench.loop.cancel(job)
        if number % 100 == 0:
            bench.drain_callbacks()
    bench.loop.call(lambda: None, in_turn=True).result(PATIENCE_S)
    bench.drain_callbacks()
    state = bench.loop.state()
    assert answered == 10_000
    assert (state.queued_items, state.running_items) == (0, 0)
    bench.loop.stop()


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.integers(1, 4), st.sampled_from(["plain", "held"])),
        st.tuples(st.just("cancel"), st.integers(0, 30), st.integers(0, 4)),
        st.tuples(st.just("expire"), st.integers(0, 3_000), st.just("")),
        st.tuples(st.just("release"), st.just(0), st.just("")),
    ),
    max_size=30,
)


@settings(deadline=None, max_examples=60)
@given(steps=STEPS)
def test_whatever_happens_each_item_is_answered_once(
    steps: list[tuple[str, int, int | str]],
) -> None:
    bench = Bench(bound=6)
    jobs = []
    submitted: list[int] = []
    answered: list[int] = []

    def answer(outcome: BatchOutcome) -> None:
        answered.extend(item.item_id for item in outcome.batch.items)
        for item, result in zip(outcome.batch.items, outcome.outcomes, strict=True):
            if isinstance(result, WorkerError):
                assert isinstance(result, (Cancelled, Expired, Unavailable))
            else:
                assert result["id"][0] == item.item_id

    for what, number, detail in steps:
        if what == "submit":
            ids = range(len(submitted), len(submitted) + number)
            deadline = bench.now + 100 * (len(submitted) % 5)
            batch = bench.batch(*ids, variant=str(detail), deadline_ns=deadline)
            submitted += ids
            jobs.append(bench.loop.submit(batch, answer))
        elif what == "cancel" and jobs:
            job = jobs[number % len(jobs)]
            bench.loop.cancel(job, [i.item_id for i in job.batch.items[: int(detail)]])
        elif what == "expire":
            bench.now = max(bench.now, number)
            bench.loop.expire(bench.now)
        elif what == "release":
            bench.runner.let_go.set()
        assert bench.loop.state().queued_items <= 6
    bench.runner.let_go.set()
    bench.loop.call(lambda: None, in_turn=True).result(PATIENCE_S)
    bench.drain_callbacks()
    assert sorted(answered) == submitted
    state = bench.loop.state()
    assert (state.queued_items, state.running_items, state.expired_items_executed) == (0, 0, 0)
    bench.loop.stop()


def test_an_idle_engine_tidies_up_once_and_still_serves() -> None:
    tidied: queue.SimpleQueue[int] = queue.SimpleQueue()
    bench = Bench(when_idle=lambda: tidied.put(threading.get_ident()))
    try:
        assert tidied.get(timeout=PATIENCE_S) != threading.get_ident()
        bench.loop.submit(bench.batch(1), bench.outcomes.append)
        assert kinds(bench.take(1)[0]) == ["ok"]
        tidied.get(timeout=PATIENCE_S)
        assert tidied.empty()
    finally:
        bench.loop.stop()
