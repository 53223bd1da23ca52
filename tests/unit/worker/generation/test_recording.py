"""What the loop records of a generation: every chunk, the first token, steps, and lost places."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator

import pytest

from tests.unit.worker.generation.held_loop import LETTER, Bench
from worker.generation.records import GenerationCall, Limits, Usage
from worker.generation.trace import GenerationTrace


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench(blocks=12)
    yield made
    made.stop()


def recorded(bench: Bench, number: int, prompt: int, most: int) -> GenerationTrace:
    """Opens a generation whose steps are recorded."""
    trace = GenerationTrace()
    limits = Limits(max_tokens=most, ignore_end=True)
    tokens = (LETTER,) * prompt
    call = GenerationCall(
        number, "m", "v", tokens, time.monotonic_ns(), limits=limits, tenant=str(number)
    )
    bench.events[number] = []
    bench.loop.open(call, bench.events[number].extend, trace)
    return trace


def test_chunks_and_steps_are_recorded_before_the_end_is_told(bench: Bench) -> None:
    bench.engine.free_running = True
    trace = recorded(bench, 1, prompt=80, most=5)
    # Whoever hears the end makes the spans, so the account must be whole by then.
    assert isinstance(bench.last(1), Usage)
    assert [(chunk.past, chunk.tokens) for chunk in trace.chunks] == [(0, 32), (32, 32), (64, 16)]
    assert [step.number for step in trace.steps] == [1, 2, 3, 4]
    times = [trace.admitted_ns]
    for chunk in trace.chunks:
        assert chunk.run_ns <= chunk.ended_ns - chunk.begun_ns and chunk.sequences == 1
        times += [chunk.begun_ns, chunk.ended_ns]
    assert trace.first_token_ns == trace.chunks[-1].ended_ns
    times += [step.ended_ns for step in trace.steps]
    assert all(earlier <= later for earlier, later in itertools.pairwise(times))
    assert trace.last_step_ns == times[-1]
    assert trace.preemptions == 0
    bench.settled()


def test_a_lost_place_is_recorded_with_those_who_lost_it(bench: Bench) -> None:
    bench.engine.free_running = True
    # Either needs nearly all of the twelve blocks in the end.
    traces = [recorded(bench, number, prompt=40, most=130) for number in (1, 2)]
    ends = [bench.last(number) for number in (1, 2)]
    told = [end.preemptions for end in ends if isinstance(end, Usage)]
    assert sum(told) > 0
    assert [trace.preemptions for trace in traces] == told
    loser = max(traces, key=lambda trace: trace.preemptions)
    # What it had made is computed again.
    assert sum(chunk.tokens for chunk in loser.chunks) > 40
    bench.settled()


def test_nothing_is_recorded_of_others(bench: Bench) -> None:
    bench.engine.free_running = True
    trace = recorded(bench, 1, prompt=8, most=3)
    bench.open(2, prompt=8, most=3)
    for number in (1, 2):
        bench.last(number)
    assert sum(chunk.tokens for chunk in trace.chunks) == 8
    assert trace.steps_seen == 2
    bench.settled()
