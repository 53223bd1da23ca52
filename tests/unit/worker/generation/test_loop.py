"""The decode loop over an engine whose steps are stopped before they end."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from tests.unit.worker.generation.held_loop import (
    CONTEXT,
    LETTER,
    PATIENCE_S,
    SIZE,
    Bench,
    HeldEngine,
    tokens,
)
from worker.errors import EngineFault
from worker.generation.lane import Lane
from worker.generation.records import (
    Admitted,
    Delta,
    Failed,
    Finish,
    Finished,
    Limits,
    Usage,
)
from worker.generation.sampling import SamplingParameters
from worker.refusals import Cancelled, Expired, Unavailable
from worker.scheduling.cost import StepCost
from worker.scheduling.records import SchedulingSettings
from worker.scheduling.scheduler import DecodeScheduler


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.stop()


def test_a_generation_is_told_from_admission_to_account(bench: Bench) -> None:
    bench.engine.free_running = True
    bench.open(1, most=3)
    last = bench.last(1)
    kinds = [type(event) for event in bench.events[1]]
    assert kinds == [Admitted, Delta, Delta, Delta, Finished, Usage]
    assert bench.events[1][-2] == Finished(0, Finish.LENGTH, "", 3)
    assert isinstance(last, Usage)
    assert (last.prompt_tokens, last.generated_tokens) == (8, 3)
    bench.settled()


def test_a_cancel_of_the_only_one_terminates_the_step(bench: Bench) -> None:
    generation = bench.open(1)
    step = bench.step()
    bench.loop.cancel(generation)
    assert step.token.terminated.wait(PATIENCE_S)
    last = bench.last(1)
    assert isinstance(last, Failed)
    assert isinstance(last.error, Cancelled)
    bench.settled()


def test_a_cancel_in_company_leaves_the_others_alone_and_frees_before_the_next_step(
    bench: Bench,
) -> None:
    first = bench.open(1)
    bench.step().end()
    bench.open(2, prompt=20)
    while True:
        step = bench.step()
        if len(step.plan) == 2:
            break
        step.end()
    bench.loop.cancel(first)
    assert not step.token.terminated.is_set()
    step.end()
    following = bench.step()
    assert len(following.plan) == 1
    # The engine thread is in the step: what the scheduler holds stays as it is.
    held = bench.lane.scheduler.load()
    blocks = len(following.plan[0].blocks)
    assert held.free_blocks + held.evictable_blocks == held.total_blocks - blocks
    bench.until(lambda: tokens(bench.events[2]) >= 1)
    bench.engine.free_running = True
    following.end()
    bench.loop.cancel(next(iter(bench.lane.owners.values())))
    bench.settled()


def test_a_cancel_during_a_long_prefill_is_seen_at_the_next_chunk(bench: Bench) -> None:
    long = bench.open(1, prompt=500, most=100)
    first = bench.step()
    assert len(first.plan[0].tokens) < 500
    first.end()
    second = bench.step()
    assert second.plan[0].past > 0
    bench.open(2, most=1)
    bench.loop.cancel(long)
    assert second.token.terminated.wait(PATIENCE_S)
    third = bench.step()
    # Not a token of the long prompt more, and all of its blocks are back but what is cached.
    assert [len(part.tokens) for part in third.plan] == [8]
    third.end()
    assert isinstance(bench.last(2), Usage)
    bench.settled()


def test_a_deadline_tells_what_was_made_and_terminates(bench: Bench) -> None:
    due = time.monotonic_ns() + 3600 * 10**9
    bench.open(1, due_ns=due)
    for _ in range(3):
        bench.step().end()
    step = bench.step()
    assert bench.loop.expire(due - 1) == due
    assert not step.token.terminated.is_set()
    assert bench.loop.expire(due) is None
    assert step.token.terminated.wait(PATIENCE_S)
    last = bench.last(1)
    assert isinstance(last, Usage)
    assert last.generated_tokens == tokens(bench.events[1]) == 3
    assert bench.events[1][-2] == Finished(0, Finish.DEADLINE, "", 3)
    bench.settled()


def test_a_deadline_before_the_first_token_is_an_error(bench: Bench) -> None:
    due = time.monotonic_ns() + 3600 * 10**9
    bench.open(1, due_ns=due)
    bench.step()
    bench.loop.expire(due)
    last = bench.last(1)
    assert isinstance(last, Failed)
    assert isinstance(last.error, Expired)
    bench.settled()


def test_what_was_late_on_arrival_never_runs(bench: Bench) -> None:
    bench.open(1, due_ns=time.monotonic_ns() - 1)
    last = bench.last(1)
    assert isinstance(last, Failed)
    assert isinstance(last.error, Expired)
    assert bench.engine.steps.empty()
    bench.settled()


@pytest.mark.parametrize("fault", [EngineFault("broken"), RuntimeError("a fault of ours")])
def test_a_failed_step_answers_only_those_in_it(bench: Bench, fault: Exception) -> None:
    bench.open(1)
    step = bench.step()
    bench.open(2, most=2)
    bench.until(lambda: bench.loop.state().queued_items == 1)
    step.end(fault)
    last = bench.last(1)
    assert isinstance(last, Failed)
    assert isinstance(last.error, EngineFault)
    bench.engine.free_running = True
    assert isinstance(bench.last(2), Usage)
    bench.settled()


def test_logits_that_are_no_numbers_end_their_own_sequence_only(bench: Bench) -> None:
    bench.open(1)
    bench.step().end()
    bench.open(2, most=5)
    while True:
        step = bench.step()
        wanted = [part for part in step.plan if part.wants_logits]
        if len(wanted) == 2:
            break
        step.end()
    rows = np.zeros((2, SIZE), np.float32)
    rows[:, LETTER] = 9
    rows[int(np.argmax([part.past for part in wanted]))] = np.nan
    step.end(rows)
    last = bench.last(1)
    assert isinstance(last, Failed)
    assert isinstance(last.error, EngineFault)
    bench.engine.free_running = True
    assert isinstance(bench.last(2), Usage)
    bench.settled()


def test_a_broken_lane_ends_its_generations_and_takes_no_more(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.open(1)
    step = bench.step()
    bench.open(2)
    # The next plan asks for blocks.
    monkeypatch.setattr(bench.engine, "arena", None)
    step.end()
    for number in (1, 2):
        last = bench.last(number)
        assert isinstance(last, Failed)
        assert isinstance(last.error, EngineFault)
    bench.open(3)
    last = bench.last(3)
    assert isinstance(last, Failed)
    assert isinstance(last.error, Unavailable)
    assert bench.lost == [(bench.lane, "the lane failed with AttributeError")]
    assert bench.loop.loads == ()


def test_a_fault_outside_of_any_lane_ends_the_thread_and_is_told() -> None:
    broken = threading.Event()

    def now_ns() -> int:
        if broken.is_set() and threading.current_thread().name == "engine":
            raise RuntimeError("a fault of ours")
        return time.monotonic_ns()

    bench = Bench(now_ns=now_ns)
    bench.open(1)
    step = bench.step()
    bench.open(2)
    waiting = bench.loop.call(lambda: 1)
    broken.set()
    step.end()
    for number in (1, 2):
        last = bench.last(number)
        assert isinstance(last, Failed) and isinstance(last.error, EngineFault)
    with pytest.raises(EngineFault, match="the engine thread failed with RuntimeError"):
        waiting.result(PATIENCE_S)
    bench.open(3)
    last = bench.last(3)
    assert isinstance(last, Failed) and "the engine thread failed" in str(last.error)
    with pytest.raises(EngineFault, match="the engine thread failed"):
        bench.loop.call(lambda: 1).result(PATIENCE_S)
    bench.until(lambda: [lane for lane, _ in bench.lost] == [bench.lane])
    assert bench.loop.loads == () and bench.loop.state().queued_items == 0
    bench.stop()


def test_a_fault_while_a_generation_is_taken_ends_its_lane_and_no_other(bench: Bench) -> None:
    def fail() -> int:
        raise RuntimeError("a fault of ours")

    settings = SchedulingSettings(blocks=8, context=CONTEXT)
    broken = Lane(
        "broken",
        "v",
        engine=HeldEngine(8),
        scheduler=DecodeScheduler(settings, StepCost(100.0, 10.0, 10.0, 0.01)),
        speech=bench.lane.speech,
        draw_seed=fail,
    )
    bench.loop.attach(broken)
    bench.engine.free_running = True
    call = bench.open(1, most=2).call
    for number, error in ((2, EngineFault), (3, Unavailable)):
        bench.events[number] = []
        asked = replace(call, model="broken", sampling=SamplingParameters(temperature=1.0))
        bench.loop.open(asked, bench.events[number].extend)
        last = bench.last(number)
        assert isinstance(last, Failed)
        assert isinstance(last.error, error)
    bench.open(4, most=2)
    for number in (1, 4):
        assert isinstance(bench.last(number), Usage)
    bench.settled()


def test_a_drain_refuses_and_finishes_and_abandoning_ends_the_rest(bench: Bench) -> None:
    bench.open(1, most=1)
    step = bench.step()
    assert bench.loop.drain() == 1
    idle = threading.Event()
    bench.loop.when_idle(idle.set)
    bench.open(2)
    last = bench.last(2)
    assert isinstance(last, Failed)
    assert isinstance(last.error, Unavailable)
    assert not idle.is_set()
    step.end()
    assert isinstance(bench.last(1), Usage)
    assert idle.wait(PATIENCE_S)
    bench.settled()


def test_stopping_answers_whatever_is_open(bench: Bench) -> None:
    bench.open(1)
    step = bench.step()
    bench.open(2)
    bench.loop.stop()
    assert step.token.terminated.is_set()
    for number in (1, 2):
        last = bench.last(number)
        assert isinstance(last, Failed)
        assert isinstance(last.error, Unavailable)
    assert bench.loop.call(lambda: 1).cancelled()
    assert bench.loop.retire("m", "v").cancelled()


def test_an_unload_that_waits_ends_with_the_loop(bench: Bench) -> None:
    bench.open(1)
    bench.step()
    retired = bench.loop.retire("m", "v")
    bench.loop.stop()
    assert retired.cancelled()


def test_a_lane_retires_when_its_last_generation_has_ended(bench: Bench) -> None:
    bench.open(1, most=2)
    step = bench.step()
    retired = bench.loop.retire("m", "v")
    step.end()
    bench.step().end()
    assert retired.result(PATIENCE_S) is None
    assert isinstance(bench.last(1), Usage)
    assert bench.loop.loads == ()
    assert bench.loop.retire("m", "v").result(PATIENCE_S) is None


def test_answers_of_one_prompt_are_accounted_together(bench: Bench) -> None:
    call = replace(bench.open(1, most=2).call, generation_id=2, limits=Limits(2, answers=3))
    bench.events[2] = []
    bench.engine.free_running = True
    bench.loop.open(call, bench.events[2].extend)
    last = bench.last(2)
    assert isinstance(last, Usage)
    assert (last.prompt_tokens, last.generated_tokens) == (8, 6)
    finished = [event.index for event in bench.events[2] if isinstance(event, Finished)]
    assert sorted(finished) == [0, 1, 2]
    bench.settled()
