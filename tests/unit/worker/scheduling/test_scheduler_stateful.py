"""The whole scheduler under random traffic: its invariants, and the arena's refusals."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.unit.worker.scheduling.arena import COST, MS, MimicArena
from worker.scheduling.invariants import violations
from worker.scheduling.policies import policy_named
from worker.scheduling.records import (
    Arrival,
    Refused,
    SchedulingSettings,
    Step,
)
from worker.scheduling.scheduler import DecodeScheduler

# Prompts are cut out of few texts, so that prefixes are shared within and across tenants.
_TEXTS = [[7 * t + i for i in range(120)] for t in range(2)]


class RandomTraffic(RuleBasedStateMachine):
    """Submits, cancels, finishes, steps and failures in any order."""

    policy = "slo"

    @initialize(blocks=st.integers(12, 40), cached=st.booleans(), width=st.integers(1, 6))
    def start(self, blocks: int, cached: bool, width: int) -> None:
        self.blocks = blocks
        self.scheduler = DecodeScheduler(
            SchedulingSettings(
                blocks=blocks,
                context=160,
                max_waiting=8,
                chunk_tokens=48,
                width=width,
                pass_limit=4,
                prefix_cache=cached,
            ),
            COST,
            policy_named(self.policy),
        )
        self.arena = MimicArena(blocks)
        self.now_ns = 0
        self.next_id = 0
        self.running: Step | None = None
        self.texts: dict[int, list[int]] = {}
        self.tenants: dict[int, str] = {}
        self.owners: dict[str, set[int]] = {}

    @rule(
        text=st.sampled_from(_TEXTS),
        length=st.integers(1, 120),
        limit=st.integers(1, 40),
        tenant=st.sampled_from("ab"),
        answers=st.integers(1, 3),
        first_ms=st.sampled_from([0, 0, 300, 3000]),
        token_ms=st.sampled_from([0, 20, 50]),
        deadline_ms=st.sampled_from([None, None, 100, 1000]),
    )
    def submit(
        self,
        text: list[int],
        length: int,
        limit: int,
        tenant: str,
        answers: int,
        first_ms: int,
        token_ms: int,
        deadline_ms: int | None,
    ) -> None:
        group = self.next_id
        for _ in range(answers):
            newcomer = Arrival(
                sequence_id=self.next_id,
                tenant=tenant,
                prompt=tuple(text[:length]),
                max_new_tokens=limit,
                arrived_ns=self.now_ns,
                deadline_ns=None if deadline_ms is None else self.now_ns + deadline_ms * MS,
                first_token_target_ns=first_ms * MS,
                token_target_ns=token_ms * MS,
                group=group,
            )
            self.next_id += 1
            try:
                self.scheduler.submit(newcomer, self.now_ns)
            except Refused:
                return
            self.texts[newcomer.sequence_id] = list(newcomer.prompt)
            self.tenants[newcomer.sequence_id] = tenant

    @rule(number=st.integers(0, 50))
    def cancel(self, number: int) -> None:
        known = [*self.texts, -1]
        self.scheduler.cancel(known[number % len(known)])
        self.texts.pop(known[number % len(known)], None)

    @rule(number=st.integers(0, 50))
    def finish(self, number: int) -> None:
        if self.texts:
            sequence_id = list(self.texts)[number % len(self.texts)]
            assert self.scheduler.finish(sequence_id) is not None
            del self.texts[sequence_id]

    @precondition(lambda self: self.running is None)
    @rule()
    def plan(self) -> None:
        step = self.scheduler.next_step(self.now_ns)
        if step is None:
            assert not self.texts, "there is work and no step"
            return
        self.arena.apply(step.changes)
        for ended in step.ended:
            del self.texts[ended.sequence_id]
        self.running = step if step.parts else None

    @precondition(lambda self: self.running is not None)
    @rule(stretch=st.sampled_from([0.7, 1.0, 1.3, 5.0]))
    def complete(self, stretch: float) -> None:
        assert self.running is not None
        step, self.running = self.running, None
        self.arena.run(step.parts, complete=True)
        tokens = {}
        for part in step.parts:
            text = self.texts.get(part.sequence_id)
            if text is not None:
                end = part.past + len(part.tokens)
                # Whatever was shared, recomputed or moved: it attends to its own text.
                assert self.arena.text(part.blocks, end) == tuple(text[:end])
                assert part.wants_logits == (end == len(text))
                owners = {self.arena.owners[block] for block in part.blocks}
                assert len(owners) == 1, "blocks of two tenants"
            if part.wants_logits:
                tokens[part.sequence_id] = token = part.sequence_id % 3
                if text is not None:
                    text.append(token)
        took_ns = int(stretch * step.predicted_ns)
        self.now_ns += took_ns
        for ended in self.scheduler.completed(step, tokens, self.now_ns, took_ns):
            del self.texts[ended.sequence_id]

    @precondition(lambda self: self.running is not None)
    @rule()
    def fail(self) -> None:
        assert self.running is not None
        step, self.running = self.running, None
        self.arena.run(step.parts, complete=False)
        self.now_ns += step.predicted_ns // 2
        self.scheduler.failed(step)

    @rule(count=st.integers(1, 40))
    def go_on(self, count: int) -> None:
        for _ in range(count):
            if self.running is None:
                self.plan()
            if self.running is None:
                return
            self.complete(1.0)

    @invariant()
    def sound(self) -> None:
        found = violations(self.scheduler.snapshot())
        assert not found, found

    def teardown(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        if self.running is not None:
            self.complete(1.0)
        for _ in range(5000):
            self.plan()
            if self.running is None and not self.texts:
                break
            if self.running is not None:
                self.complete(1.0)
            self.sound()
        self.plan()
        state = self.scheduler.load()
        assert (state.waiting, state.prefilling, state.decoding) == (0, 0, 0)
        assert state.pending_prompt_tokens == state.cached_tokens == 0
        assert state.free_blocks + state.evictable_blocks == state.total_blocks
        held = dict(self.scheduler.snapshot().cached)
        assert self.arena.references == [int(block in held) for block in range(self.blocks)]


@pytest.mark.parametrize(
    "policy", ["slo", "serial", "never-evict", "preempt-64", "limit-2", "limit-3+shed"]
)
def test_any_traffic_keeps_every_invariant(policy: str) -> None:
    machine = type("Traffic", (RandomTraffic,), {"policy": policy})
    run_state_machine_as_test(
        machine, settings=settings(max_examples=50, stateful_step_count=40, deadline=None)
    )
