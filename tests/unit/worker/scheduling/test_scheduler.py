"""The scheduler step by step."""

from __future__ import annotations

import numpy as np
import pytest

from tests.unit.worker.scheduling.arena import MS, World, arrival
from worker.scheduling.invariants import violations
from worker.scheduling.records import Change, Reason, Refused


def test_one_sequence_from_prompt_to_its_limit() -> None:
    world = World(blocks=8, chunk_tokens=32)
    world.submit(arrival(1, prompt=40, max_new_tokens=3))
    first = world.plan()
    assert first is not None
    assert [c.kind for c in first.changes] == [Change.ACQUIRE]
    (part,) = first.parts
    assert (len(part.tokens), part.past, len(part.blocks)) == (32, 0, 2)
    assert not part.wants_logits
    world.complete(first)
    second = world.step()
    assert second is not None
    (part,) = second.parts
    assert (len(part.tokens), part.past, part.wants_logits) == (8, 32, True)
    for past in (40, 41):
        step = world.step()
        assert step is not None
        (part,) = step.parts
        assert (part.tokens, part.past, part.wants_logits) == ((past,), past, True)
    (ended,) = world.ended
    assert (ended.sequence_id, ended.reason) == (1, Reason.LENGTH)
    record = ended.record
    assert (record.prompt_tokens, record.generated_tokens, record.preemptions) == (40, 3, 0)
    assert 0 < record.first_token_ns < record.total_ns
    assert record.prefill_ns + record.decode_ns <= record.total_ns
    assert record.mean_gap_ns == (record.total_ns - record.first_token_ns) // 2
    last = world.plan()
    assert last is not None
    assert not last.parts
    assert world.plan() is None
    state = world.scheduler.load()
    assert state.free_blocks + state.evictable_blocks == 8


def test_a_step_must_be_settled_before_the_next() -> None:
    world = World()
    world.submit(arrival(1))
    step = world.plan()
    assert step is not None
    with pytest.raises(RuntimeError, match="must be completed or failed"):
        world.scheduler.next_step(0)
    with pytest.raises(ValueError, match="no token"):
        world.scheduler.completed(step, {}, 1, 1)
    world.complete(step)
    with pytest.raises(ValueError, match="not the one that runs"):
        world.scheduler.completed(step, {1: 5}, 1, 1)
    with pytest.raises(ValueError, match="not the one that runs"):
        world.scheduler.failed(step)


def test_a_failed_step_is_planned_again() -> None:
    world = World()
    world.submit(arrival(1))
    step = world.plan()
    assert step is not None
    world.arena.run(step.parts, complete=False)
    world.scheduler.failed(step)
    again = world.plan()
    assert again is not None
    assert again.parts == step.parts
    assert again.changes == ()


def test_what_is_cancelled_while_it_runs_is_free_before_the_next_plan() -> None:
    world = World(prefix_cache=False)
    world.submit(arrival(1))
    step = world.plan()
    assert step is not None
    assert world.scheduler.cancel(1) is not None
    assert world.scheduler.cancel(1) is None
    assert world.scheduler.load().free_blocks < 64
    world.complete(step)
    assert world.scheduler.load().free_blocks == 64
    after = world.plan()
    assert after is not None
    assert [c.kind for c in after.changes] == [Change.RELEASE]
    assert not after.parts
    assert world.plan() is None


def test_what_never_fits_and_what_finds_no_place() -> None:
    world = World(blocks=4, context=512, max_waiting=1)
    with pytest.raises(Refused) as refused:
        world.submit(arrival(1, prompt=60, max_new_tokens=6))
    assert (refused.value.reason, refused.value.retry_after_ns) == (Reason.TOO_LONG, 0)
    with pytest.raises(Refused, match=Reason.TOO_LONG):
        World(context=16).submit(arrival(1, prompt=16))
    world.submit(arrival(2, prompt=60, max_new_tokens=5))
    with pytest.raises(Refused) as refused:
        world.submit(arrival(3))
    assert refused.value.reason == Reason.QUEUE_FULL
    assert refused.value.retry_after_ns > 0
    with pytest.raises(ValueError, match="already here"):
        world.submit(arrival(2))
    with pytest.raises(ValueError, match="a token of prompt"):
        world.submit(arrival(4, prompt=0))


def test_a_deadline_ends_what_waits_and_what_decodes() -> None:
    world = World(width=1)
    world.submit(arrival(1, max_new_tokens=100, deadline_ns=200 * MS))
    world.step()
    world.submit(arrival(2, deadline_ns=200 * MS))
    world.now_ns = 200 * MS
    step = world.plan()
    assert step is not None
    assert {(e.sequence_id, e.reason) for e in step.ended} == {
        (1, Reason.EXPIRED),
        (2, Reason.EXPIRED),
    }
    assert not step.parts
    assert violations(world.scheduler.snapshot()) == []


def test_after_ten_thousand_cancels_every_gauge_is_zero() -> None:
    random = np.random.default_rng(1)
    world = World(blocks=40, context=128, max_waiting=10_000)
    living: list[int] = []
    for number in range(10_000):
        tenant = "ab"[number % 2]
        prompt = list(range(int(random.integers(1, 60))))
        world.submit(arrival(number, prompt=prompt, tenant=tenant, max_new_tokens=30))
        living.append(number)
        step = world.plan() if number % 3 == 0 else None
        while len(living) > 6:
            world.scheduler.cancel(living.pop(int(random.integers(len(living)))))
        if step is not None and step.parts:
            world.complete(step)
    for number in living:
        world.scheduler.cancel(number)
    world.drain()
    state = world.scheduler.load()
    assert (state.waiting, state.prefilling, state.decoding) == (0, 0, 0)
    assert state.pending_prompt_tokens == state.cached_tokens == 0
    assert state.free_blocks + state.evictable_blocks == 40
    assert sum(world.arena.references) == state.evictable_blocks
    assert violations(world.scheduler.snapshot()) == []
