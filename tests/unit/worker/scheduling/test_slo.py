"""The default policy: door, order, chunks, pace, preemption, shared prompts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.worker.scheduling.arena import MS, World, arrival
from worker.scheduling.admission import queue_order
from worker.scheduling.cost import CorrectedCost, StepCost, load_of
from worker.scheduling.door import with_kept_target
from worker.scheduling.invariants import violations
from worker.scheduling.pace import Beat, Pace
from worker.scheduling.policies import SLO
from worker.scheduling.records import Reason, Refused, Step
from worker.scheduling.sequences import DecodeSequence
from worker.scheduling.step_plan import chunk_budget, fill

_TARGETS = {"first_token_target_ns": 2000 * MS, "token_target_ns": 50 * MS}


def _chunk(step: Step) -> int:
    return sum(len(part.tokens) for part in step.parts if len(part.tokens) > 1)


def test_the_door_refuses_what_would_be_late_and_says_when_to_try_again() -> None:
    world = World(blocks=512)
    # 300 tokens take 450 ms: four prompts fit into 2 s with a quarter of one to spare.
    for number in range(4):
        world.submit(arrival(number, prompt=300, **_TARGETS))
    with pytest.raises(Refused) as refused:
        world.submit(arrival(4, prompt=300, **_TARGETS))
    assert refused.value.reason == Reason.LATE
    assert 0 < refused.value.retry_after_ns < 2000 * MS
    world.drain()
    assert len(world.ended) == 4
    assert all(e.record.first_token_ns <= 2000 * MS for e in world.ended)


def test_what_the_running_step_computes_is_not_counted_twice() -> None:
    world = World(blocks=512)
    for number in range(4):
        world.submit(arrival(number, prompt=256, **_TARGETS))
    step = world.plan()
    assert step is not None and _chunk(step) == 256
    # 384 ms run and 1152 ms wait: the newcomer's 225 ms and a quarter fit behind them.
    world.submit(arrival(4, prompt=150, **_TARGETS))
    world.complete(step)
    world.drain()
    assert all(e.record.first_token_ns <= 2000 * MS for e in world.ended)


def test_what_can_never_be_in_time_is_not_told_to_come_again() -> None:
    world = World()
    with pytest.raises(Refused) as refused:
        world.submit(arrival(1, prompt=400, first_token_target_ns=100 * MS))
    assert (refused.value.reason, refused.value.retry_after_ns) == (Reason.LATE, 0)
    world.submit(arrival(2, prompt=400))
    world.drain()
    assert len(world.ended) == 1


def test_a_target_that_nobody_named_grows_with_what_was_learnt() -> None:
    world = World(blocks=512)
    world.submit(arrival(0, prompt=100, max_new_tokens=60))
    _run(world, 3.0)
    named = {"prompt": 100, "arrived_ns": world.now_ns, "first_token_target_ns": 160 * MS}
    with pytest.raises(Refused) as refused:
        world.submit(arrival(1, **named))
    assert refused.value.retry_after_ns == 0
    world.submit(arrival(2, first_token_target_grows=True, **named))
    # It grows with the prompt, not with those before it.
    with pytest.raises(Refused) as behind:
        world.submit(arrival(3, first_token_target_grows=True, **named))
    assert behind.value.retry_after_ns > 0
    world.drain()
    assert world.ended[-1].reason == Reason.LENGTH


def test_a_target_that_can_be_kept_does_not_grow() -> None:
    cost = CorrectedCost(StepCost(10_000, 1_000, 1_000, 0))
    kept = arrival(0, prompt=100, first_token_target_ns=221 * MS, first_token_target_grows=True)
    assert with_kept_target(kept, cost) == kept
    short = replace(kept, first_token_target_ns=219 * MS)
    assert with_kept_target(short, cost).first_token_target_ns == 220 * MS
    without = replace(kept, first_token_target_ns=0)
    assert with_kept_target(without, cost) == without
    named = replace(short, first_token_target_grows=False)
    assert with_kept_target(named, cost) == named


def _dear_profile(target_ms: int) -> World:
    """A worker whose warm-up took steps for ten times what they cost; the first call is refused."""
    world = World(cost=StepCost(66_000, 15_000, 11_500, 20))
    with pytest.raises(Refused):
        world.submit(arrival(0, prompt=100, first_token_target_ns=target_ms * MS))
    return world


def _run(world: World, times: float) -> None:
    """Runs everything, each step in so many times what is predicted by the profile."""
    while (step := world.plan()) is not None:
        if not step.parts:
            continue
        nominal = world.scheduler.cost.cost
        load = load_of(step.parts)
        took = int(times * (nominal.prefill_ns(load) + nominal.decode_ns(load)))
        world.now_ns += took
        tokens = {part.sequence_id: 1 for part in step.parts if part.wants_logits}
        world.ended += world.scheduler.completed(step, tokens, world.now_ns, took)


def test_an_idle_worker_that_refuses_lets_one_try_and_learns_from_it() -> None:
    world = _dear_profile(1000)
    for number in range(1, 8):
        world.now_ns += 1000 * MS
        newcomer = arrival(
            number,
            prompt=100,
            max_new_tokens=100,
            arrived_ns=world.now_ns,
            first_token_target_ns=1000 * MS,
        )
        world.submit(newcomer)
        _run(world, 0.1)
    assert [e.reason for e in world.ended] == [Reason.LENGTH] * 7
    # What was learnt holds without waiting for another doubt.
    world.submit(arrival(8, prompt=100, arrived_ns=world.now_ns, first_token_target_ns=1000 * MS))
    world.submit(arrival(9, prompt=30, arrived_ns=world.now_ns, first_token_target_ns=1000 * MS))


def test_nobody_tries_what_cannot_be_in_time_or_too_soon_or_beside_others() -> None:
    world = _dear_profile(300)
    world.now_ns += 999 * MS
    late = {"prompt": 100, "first_token_target_ns": 1000 * MS}
    with pytest.raises(Refused):
        world.submit(arrival(1, arrived_ns=world.now_ns, **late))
    world.now_ns += 1000 * MS
    with pytest.raises(Refused):
        world.submit(
            arrival(2, prompt=100, arrived_ns=world.now_ns, first_token_target_ns=300 * MS)
        )
    world.submit(arrival(3, arrived_ns=world.now_ns))
    with pytest.raises(Refused):
        world.submit(arrival(4, arrived_ns=world.now_ns, **late))
    world.drain()
    # A step was completed, so the next refusal begins the second anew.
    with pytest.raises(Refused):
        world.submit(arrival(5, arrived_ns=world.now_ns, **late))


def test_who_is_due_first_is_admitted_first() -> None:
    waiting = [
        DecodeSequence(arrival(n, prompt=p, first_token_target_ns=t * MS), 8, n)
        for n, (p, t) in enumerate([(10, 900), (300, 900), (10, 0), (10, 300)])
    ]
    order = queue_order(waiting, SLO, pass_limit=4)
    assert [s.sequence_id for s in order] == [3, 0, 1, 2]
    waiting[2].passed_over = 4
    order = queue_order(waiting, SLO, pass_limit=4)
    assert order[0].sequence_id == 2


def test_a_chunk_is_what_the_tightest_pace_leaves() -> None:
    easy, tight = Pace(500.0, 50.0, 100.0), Pace(80.0, 50.0, 100.0)
    assert chunk_budget(Beat(20.0, (easy, tight)), 1.5, 128) == 40
    assert chunk_budget(Beat(20.0, (easy,)), 1.5, 128) == 128
    assert chunk_budget(Beat(20.0, (Pace(-5.0, 50.0, 9.0),)), 1.5, 128) == 0
    assert chunk_budget(Beat(20.0, ()), 1.5, 128) == 128


def test_nothing_is_read_beside_a_prompt_that_would_make_it_late() -> None:
    def prompts(first_due: int) -> list[DecodeSequence]:
        due = (first_due, 900, 0)
        return [
            DecodeSequence(arrival(n, prompt=100, first_token_target_ns=t * MS), 8, n)
            for n, t in enumerate(due)
        ]

    def counts(first_due: int, budget: int = 256) -> list[int]:
        # A step without prompts ends at 20 ms, a token takes 1 ms: the first alone ends at 120 ms.
        shares = fill(prompts(first_due), budget, 20.0 * MS, 1.0 * MS, 0.9)
        return [share.tokens for share in shares]

    assert counts(400) == [100, 100, 56]
    # A tenth of the target is kept to spare.
    assert counts(200) == [100, 60]
    assert counts(130) == [100]
    assert counts(120) == [100]
    # Late whatever happens: nobody waits for it.
    assert counts(119) == [100, 100, 56]
    # It does not end in this step.
    assert counts(120, budget=60) == [60]


def test_prompts_have_the_time_that_steps_leave() -> None:
    beat = Beat(20.0, (Pace(100.0, 50.0, 1000.0), Pace(400.0, 50.0, 2.0)))
    assert beat.prompt_time_ns(100.0, 0.0) == 100.0
    assert beat.prompt_time_ns(600.0, 0.0) == 600.0 - 20.0 * 10
    assert beat.prompt_time_ns(600.0, 5.0) == 600.0 - 25.0 * 10
    assert Beat(20.0, (Pace(0.0, 50.0, 3.0),)).prompt_time_ns(600.0, 0.0) == 540.0


def test_tokens_keep_their_pace_beside_prompts() -> None:
    world = World(blocks=512)
    world.submit(arrival(0, max_new_tokens=60, **_TARGETS))
    world.step()
    for number in range(1, 4):
        world.submit(arrival(number, prompt=300, max_new_tokens=60, **_TARGETS))
    shared = 0
    while (step := world.step()) is not None:
        shared += len(step.parts) > 1 and _chunk(step) > 0
        assert _chunk(step) <= 256
    assert shared > 3
    for ended in world.ended:
        assert ended.record.mean_gap_ns <= 50 * MS
        assert ended.record.first_token_ns <= 2000 * MS


def test_a_pace_nobody_can_keep_does_not_stop_prompts() -> None:
    world = World(blocks=512, pass_limit=6)
    hurried = {"token_target_ns": 1 * MS}
    for number in range(3):
        world.submit(arrival(number, max_new_tokens=300, **hurried))
    for _ in range(3):
        world.step()
    world.submit(arrival(9, prompt=100, max_new_tokens=2))
    for _ in range(400):
        world.step()
        if any(e.sequence_id == 9 for e in world.ended):
            break
    assert any(e.sequence_id == 9 for e in world.ended)


def test_when_blocks_run_out_somebody_gives_way_and_all_end_as_if_alone() -> None:
    alone = World(blocks=64)
    alone.submit(arrival(0, prompt=30, max_new_tokens=60))
    alone.drain()
    world = World(blocks=10, prefix_cache=False)
    for number in range(3):
        world.submit(arrival(number, prompt=30, max_new_tokens=60))
    while world.step() is not None:
        assert violations(world.scheduler.snapshot()) == []
    assert world.scheduler.load().preemptions > 0
    assert {len(world.answers[n]) for n in range(3)} == {60}
    assert all(world.answers[n] == alone.answers[0] for n in range(3))


def test_a_preempted_sequence_finds_its_blocks_again() -> None:
    world = World(blocks=10)
    for number in range(2):
        world.submit(arrival(number, prompt=40, max_new_tokens=60))
    again = 0
    while (step := world.step()) is not None:
        again += sum(len(part.tokens) for part in step.parts if len(part.tokens) > 1)
    preemptions = world.scheduler.load().preemptions
    assert preemptions > 0
    assert world.scheduler.load().generated_tokens == 120
    assert again < 80 + 100 * preemptions


def test_answers_of_one_prompt_share_its_blocks() -> None:
    world = World(blocks=64)
    for number in range(4):
        world.submit(arrival(number, prompt=list(range(100)), max_new_tokens=5, group=1))
    first = world.step()
    assert first is not None
    assert [part.sequence_id for part in first.parts] == [0]
    parts = world.plan()
    assert parts is not None
    late = [part for part in parts.parts if part.sequence_id]
    assert [(part.past, len(part.tokens)) for part in late] == [(96, 4)] * 3
    assert len({part.blocks[:6] for part in parts.parts}) == 1
    world.complete(parts)
    assert world.scheduler.load().prefix_hit_tokens == 3 * 96
    assert world.scheduler.cached_tokens(3) == 96


def test_a_second_request_computes_only_what_is_new() -> None:
    world = World(blocks=64)
    text = list(range(200))
    for number, tenant in enumerate(("a", "a", "b")):
        world.submit(
            arrival(number, prompt=[*text, number], tenant=tenant, arrived_ns=world.now_ns)
        )
        world.drain()
    first, second, stranger = (e.record for e in world.ended)
    assert (first.cached_tokens, second.cached_tokens, stranger.cached_tokens) == (0, 192, 0)
    assert second.first_token_ns < 0.3 * first.first_token_ns


def test_a_follower_goes_on_when_its_first_is_cancelled() -> None:
    world = World(chunk_tokens=16)
    for number in range(2):
        world.submit(arrival(number, prompt=list(range(100)), group=7))
    world.step()
    assert world.scheduler.load().waiting == 1
    world.scheduler.cancel(0)
    world.drain()
    assert [e.sequence_id for e in world.ended] == [1]


def test_what_waits_is_passed_over_so_often_and_not_more() -> None:
    world = World(blocks=14, context=200, pass_limit=3, prefix_cache=False)
    world.submit(arrival(0, prompt=100, max_new_tokens=20))
    world.step()
    world.submit(arrival(1, prompt=150, max_new_tokens=40))
    for number in range(2, 12):
        world.submit(arrival(number, prompt=16, max_new_tokens=8, first_token_target_ns=10**6 * MS))
    for _ in range(400):
        if world.step() is None:
            break
        assert violations(world.scheduler.snapshot()) == []
    assert len(world.ended) == 12


def test_answers_that_end_early_teach_what_to_expect() -> None:
    world = World(blocks=512)
    for number in range(60):
        world.submit(arrival(number, max_new_tokens=400))
        world.step()
        assert world.scheduler.finish(number) is not None
        assert world.scheduler.finish(number) is None
    # Each answer was a token of 400: who stands in the arena is expected to leave soon.
    for number in range(100, 106):
        world.submit(arrival(number, max_new_tokens=400, arrived_ns=world.now_ns, **_TARGETS))
        world.step()
    state = world.scheduler.load()
    assert state.waiting + state.prefilling + state.decoding == 6
