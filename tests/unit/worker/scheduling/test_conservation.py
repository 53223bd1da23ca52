"""What sequences are charged adds up to what the arena held and the engine spent."""

from __future__ import annotations

import numpy as np
import pytest

from tests.unit.worker.scheduling.arena import World, arrival
from worker.scheduling.policies import PREEMPT, SLO, SchedulingPolicy
from worker.scheduling.records import SequenceRecord

MS = 1_000_000


class Account(World):
    """A world whose steps take CPU time that differs from their time."""

    spent_ns = 0

    def run(self, most: int = 10_000) -> None:
        """Steps until nothing is left to do."""
        for _ in range(most):
            step = self.plan()
            if step is None:
                return
            if not step.parts:
                continue
            self.arena.run(step.parts, complete=True)
            self.now_ns += step.predicted_ns
            cpu_ns = 2 * step.predicted_ns + 17
            self.spent_ns += cpu_ns
            tokens = {p.sequence_id: 5 for p in step.parts if p.wants_logits}
            self.ended += self.scheduler.completed(
                step, tokens, self.now_ns, step.predicted_ns, cpu_ns
            )
            # The engine rests between steps, and the arena holds what it holds.
            self.now_ns += 3 * MS
        raise AssertionError("it never ends")


def records(world: Account) -> list[SequenceRecord]:
    return [ended.record for ended in world.ended]


@pytest.mark.parametrize("blocks", [64, 9])
def test_live_tokens_are_the_arenas_integral(blocks: int) -> None:
    """With 9 blocks some are preempted; the last ones find their prompt cached."""
    world = Account(SLO, blocks=blocks)
    draw = np.random.default_rng(5)
    shared = list(range(1, 49))
    for number in range(1, 13):
        prompt = shared if number % 3 == 0 else [100 * number + i for i in range(30)]
        world.submit(arrival(number, prompt, max_new_tokens=int(draw.integers(4, 20))))
        world.now_ns += MS
    world.run()
    assert len(world.ended) == 12
    held_ms = world.scheduler.load().live_token_ms
    charged_ms = sum(record.live_token_ns for record in records(world)) / MS
    assert charged_ms == pytest.approx(held_ms, abs=1)
    assert held_ms > 0


def test_cpu_time_of_steps_is_charged_to_the_last_nanoseconds() -> None:
    world = Account(SLO, blocks=64)
    for number in range(1, 8):
        world.submit(arrival(number, 20 + number, max_new_tokens=6))
    world.run()
    charged = sum(record.prefill_ns + record.decode_ns for record in records(world))
    # Each share of each step is cut to whole ns.
    assert 0 <= world.spent_ns - charged < 1000


def test_who_waits_holds_nothing() -> None:
    """A prompt that is cached is held from its admission on, not from its arrival."""
    world = Account(SLO, blocks=64)
    prompt = list(range(1, 49))
    world.submit(arrival(1, prompt, max_new_tokens=2))
    world.run()
    late_ns = world.now_ns
    world.submit(arrival(2, prompt, max_new_tokens=2, arrived_ns=late_ns))
    world.now_ns += 1000 * MS
    world.run()
    second = world.ended[-1].record
    assert second.cached_tokens > 0 and second.queue_ns == 1000 * MS
    assert second.live_token_ns < 50 * (world.now_ns - late_ns - 1000 * MS)


def test_a_sequence_that_is_cancelled_was_held_until_the_last_look() -> None:
    world = Account(SLO, blocks=64)
    world.submit(arrival(1, 40, max_new_tokens=8))
    step = world.plan()
    assert step is not None
    world.complete(step)
    world.now_ns += 5 * MS
    second = world.plan()
    assert second is not None
    world.scheduler.failed(second, 1000)
    record = world.scheduler.cancel(1)
    assert record is not None
    assert record.live_token_ns // MS == world.scheduler.load().live_token_ms


@pytest.mark.parametrize("policy", [SLO, PREEMPT])
def test_policies_charge_alike(policy: SchedulingPolicy) -> None:
    world = Account(policy, blocks=24)
    for number in range(1, 9):
        world.submit(arrival(number, 40, max_new_tokens=10))
        world.now_ns += MS
    world.run()
    charged_ms = sum(record.live_token_ns for record in records(world)) / MS
    assert charged_ms == pytest.approx(world.scheduler.load().live_token_ms, abs=1)
