"""Names of policies, and what tells them apart when they run."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.unit.worker.scheduling.arena import MS, World, arrival
from worker.scheduling.policies import NEVER_EVICT, POLICIES, SLO, policy_named


def test_names() -> None:
    assert policy_named("slo") is SLO
    assert policy_named("limit-12").residents == 12
    assert not policy_named("limit-12").shed
    assert policy_named("limit-3+shed").shed
    assert len({policy_named(name.replace("N", "5")) for name in POLICIES}) == len(POLICIES)


@pytest.mark.parametrize("name", ["", "fifo", "limit-0", "limit-", "limit-4+evict", "slo "])
def test_unknown_names_are_told_the_known(name: str) -> None:
    with pytest.raises(ValueError, match="limit-N"):
        policy_named(name)


def test_serial_runs_one_after_the_other() -> None:
    world = World(policy_named("serial"))
    for number in range(3):
        world.submit(arrival(number, max_new_tokens=4))
    order = []
    while (step := world.step()) is not None:
        assert len(step.parts) <= 1
        order += [part.sequence_id for part in step.parts]
    assert order == sorted(order)


def test_chunks_and_decoding_take_turns_round_robin() -> None:
    world = World(NEVER_EVICT, blocks=256)
    for number in range(10):
        world.submit(arrival(number, prompt=16, max_new_tokens=30))
    world.submit(arrival(10, prompt=500, max_new_tokens=4))
    kinds = []
    served = dict.fromkeys(range(11), 0)
    for _ in range(60):
        step = world.step()
        assert step is not None
        chunk = any(len(part.tokens) > 1 for part in step.parts)
        assert len(step.parts) <= (1 if chunk else 8)
        assert sum(len(part.tokens) for part in step.parts) <= 256
        kinds.append(chunk)
        for part in step.parts:
            served[part.sequence_id] += 1
    assert not any(a and b for a, b in pairwise(kinds[:20]))
    counts = [served[number] for number in range(10)]
    assert max(counts) - min(counts) <= 2


def test_a_limit_bounds_who_is_resident() -> None:
    world = World(policy_named("limit-2"))
    for number in range(5):
        world.submit(arrival(number))
    while world.step() is not None:
        state = world.scheduler.load()
        assert state.prefilling + state.decoding <= 2
    assert len(world.ended) == 5


def test_shedding_ends_what_waits_too_long() -> None:
    for name, ended in (("limit-1", 2), ("limit-1+shed", 1)):
        world = World(policy_named(name))
        world.submit(arrival(1, max_new_tokens=100))
        world.submit(arrival(2, first_token_target_ns=200 * MS))
        world.drain()
        assert len([e for e in world.ended if e.reason == "length"]) == ended
        if ended == 1:
            shed = next(e for e in world.ended if e.reason == "shed")
            assert shed.sequence_id == 2
            assert shed.retry_after_ns > 0
            assert world.scheduler.load().shed == 1


def test_a_newcomer_evicts_who_can_afford_it() -> None:
    world = World(policy_named("preempt-64"), blocks=64)
    targets = {"first_token_target_ns": 60_000 * MS, "token_target_ns": 1000 * MS}
    for number in range(4):
        world.submit(arrival(number, prompt=32, max_new_tokens=33, **targets))
    for _ in range(12):
        world.step()
    assert world.scheduler.load().preemptions == 0
    world.submit(arrival(4, prompt=32, max_new_tokens=33, **targets))
    world.step()
    assert world.scheduler.load().preemptions == 1
    world.drain()
    assert len(world.ended) == 5
    assert sum(e.record.preemptions for e in world.ended) >= 1


def test_who_preempts_each_other_leaves_turns_to_a_third() -> None:
    world = World(policy_named("preempt-64"), blocks=12, context=160, chunk_tokens=48, pass_limit=4)
    shared = list(range(97))
    world.submit(arrival(0, shared[:96], max_new_tokens=1))
    world.step()
    for number in (1, 2, 3):
        targets = {"first_token_target_ns": 300 * MS, "token_target_ns": 20 * MS}
        world.submit(arrival(number, shared, max_new_tokens=33, group=1, **targets))
    world.step()
    world.submit(arrival(4, shared[:10], max_new_tokens=40))
    served: list[int] = []
    for _ in range(30):
        step = world.step()
        assert step is not None
        served += [part.sequence_id for part in step.parts]
    assert world.scheduler.load().preemptions > 3
    for number in (1, 2, 3):
        places = [place for place, who in enumerate(served) if who == number]
        assert len(places) > 2 and max(b - a for a, b in pairwise(places)) < 12
