"""A stand-in for the engine's arena that refuses what the engine refuses, and a small world."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from worker.scheduling.blocks import BLOCK_TOKENS, blocks_for
from worker.scheduling.cost import StepCost
from worker.scheduling.policies import SLO, SchedulingPolicy
from worker.scheduling.records import (
    Arrival,
    BlockChange,
    Change,
    Ended,
    SchedulingSettings,
    Step,
    StepPart,
)
from worker.scheduling.scheduler import DecodeScheduler

MS = 1_000_000
COST = StepCost(step_us=6600, prefill_us_per_token=1500, sequence_us=1150, cached_us_per_token=2)


class MimicArena:
    """References, owners and contents of blocks, with the rules of `orchid::KvArena`.

    Instead of keys and values a block holds (owner, tokens up to each position): what a
    position attends to must be exactly the sequence's own tokens.
    """

    def __init__(self, blocks: int) -> None:
        self.references = [0] * blocks
        self.owners: list[int | None] = [None] * blocks
        self.contents: list[list[tuple[int, ...]]] = [[] for _ in range(blocks)]

    def apply(self, changes: Sequence[BlockChange]) -> None:
        for kind, blocks, owner in changes:
            assert blocks, "a change of no block"
            if kind == Change.ACQUIRE:
                assert len(set(blocks)) == len(blocks)
                for block in blocks:
                    assert self.references[block] == 0, f"block {block} is not free"
                    self.references[block], self.owners[block] = 1, owner
                    self.contents[block] = []
            elif kind == Change.RETAIN:
                for block in blocks:
                    assert self.references[block] > 0, f"block {block} is free"
                    self.references[block] += 1
            else:
                assert kind == Change.RELEASE
                for block, count in Counter(blocks).items():
                    assert self.references[block] >= count, f"block {block} is over-released"
                    self.references[block] -= count
                    if not self.references[block]:
                        self.contents[block] = []

    def run(self, parts: Sequence[StepPart], *, complete: bool) -> None:
        """Checks a step as the engine does; writes its tokens when it is `complete`."""
        writers: Counter[int] = Counter()
        read: Counter[int] = Counter()
        for part in parts:
            assert part.tokens
            assert blocks_for(part.past + len(part.tokens)) <= len(part.blocks)
            for place in range(blocks_for(part.past)):
                block = part.blocks[place]
                assert self.references[block] > 0
                held = min(BLOCK_TOKENS, part.past - place * BLOCK_TOKENS)
                assert len(self.contents[block]) >= held, "reads what was never written"
            last = blocks_for(part.past + len(part.tokens))
            for block in part.blocks[part.past // BLOCK_TOKENS : last]:
                assert self.references[block] == 1, f"writes shared block {block}"
                writers[block] += 1
            read.update(part.blocks[: part.past // BLOCK_TOKENS])
        assert not writers or max(writers.values()) == 1
        assert not set(writers) & set(read)
        if complete:
            for part in parts:
                self._write(part)

    def _write(self, part: StepPart) -> None:
        before = self.text(part.blocks, part.past)
        for offset, token in enumerate(part.tokens):
            place, slot = divmod(part.past + offset, BLOCK_TOKENS)
            before = (*before, token)
            content = self.contents[part.blocks[place]]
            del content[slot:]
            content.append(before)

    def text(self, blocks: Sequence[int], tokens: int) -> tuple[int, ...]:
        """What the last of so many tokens has attended to."""
        if not tokens:
            return ()
        return self.contents[blocks[(tokens - 1) // BLOCK_TOKENS]][(tokens - 1) % BLOCK_TOKENS]


def arrival(sequence_id: int, prompt: int | Sequence[int] = 20, **fields: object) -> Arrival:
    """An arrival with a prompt of its own, or these tokens; 8 tokens to generate."""
    if isinstance(prompt, int):
        prompt = [1000 * (sequence_id + 1) + i for i in range(prompt)]
    given: dict[str, object] = {"tenant": "a", "max_new_tokens": 8, "arrived_ns": 0, **fields}
    return Arrival(sequence_id=sequence_id, prompt=tuple(prompt), **given)  # type: ignore[arg-type]


class World:
    """A scheduler with its arena and a clock; every run takes as long as predicted."""

    def __init__(
        self,
        policy: SchedulingPolicy = SLO,
        *,
        blocks: int = 64,
        cost: StepCost = COST,
        **settings: object,
    ) -> None:
        given: dict[str, object] = {"context": 512, **settings}
        self.scheduler = DecodeScheduler(
            SchedulingSettings(blocks=blocks, **given),  # type: ignore[arg-type]
            cost,
            policy,
        )
        self.arena = MimicArena(blocks)
        self.now_ns = 0
        self.ended: list[Ended] = []
        self.answers: dict[int, list[int]] = {}

    def submit(self, newcomer: Arrival) -> None:
        self.scheduler.submit(newcomer, self.now_ns)

    def plan(self) -> Step | None:
        """The next step, its changes made and its ended noted."""
        step = self.scheduler.next_step(self.now_ns)
        if step is not None:
            self.arena.apply(step.changes)
            self.ended += step.ended
        return step

    def complete(self, step: Step) -> None:
        """Runs a step; the token sampled is the count of tokens before it."""
        self.arena.run(step.parts, complete=True)
        self.now_ns += step.predicted_ns
        tokens = {}
        for part in step.parts:
            if part.wants_logits:
                tokens[part.sequence_id] = part.past + len(part.tokens)
                self.answers.setdefault(part.sequence_id, []).append(tokens[part.sequence_id])
        self.ended += self.scheduler.completed(step, tokens, self.now_ns, step.predicted_ns)

    def step(self) -> Step | None:
        step = self.plan()
        if step is not None and step.parts:
            self.complete(step)
        return step

    def drain(self, most: int = 10_000) -> int:
        """Steps until nothing is left to do; returns how many."""
        for count in range(most):
            if self.step() is None:
                return count
        raise AssertionError("it never ends")
