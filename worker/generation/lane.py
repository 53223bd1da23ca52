"""One model on one arena: the scheduler's plans, carried out. Lives on the engine thread.

A step is planned, its block changes are made in the arena, it runs, and its tokens are committed;
nothing is told to a caller before that.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from worker.decode import SequenceStep, StepLogits
from worker.errors import InvalidInput
from worker.generation.answer import Answer
from worker.generation.generation import Generation
from worker.generation.records import GenerationCall
from worker.generation.sampling import Sampler, generator_of
from worker.generation.stops import StopStrings
from worker.generation.text import TokenText
from worker.kv_arena import KvArena
from worker.refusals import Exhausted
from worker.scheduling.block_map import cells_of
from worker.scheduling.blocks import BLOCK_TOKENS
from worker.scheduling.invariants import violations
from worker.scheduling.records import (
    Arrival,
    Change,
    Ended,
    Reason,
    Refused,
    SequenceRecord,
    Step,
)
from worker.scheduling.scheduler import DecodeScheduler

# A map is made from every block, so not after every step.
_MAP_NS = 1_000_000_000

_LATE = "the first token would come after its target"
_REMEDY = "a longer first_token_target_ms waits for them"
_REFUSALS = {
    Reason.QUEUE_FULL: "as many generations wait as may",
    Reason.LATE: f"{_LATE}: others are before it; {_REMEDY}",
    Reason.SHED: "the first token can no longer make its target, since others were before it; "
    "a longer first_token_target_ms lets it wait",
}
_HOPELESS = f"{_LATE} with nothing before it; a longer first_token_target_ms is needed"


class Stepper(Protocol):
    """What runs steps on an arena, as `worker.decode.DecodeEngine`."""

    @property
    def arena(self) -> KvArena:
        """The arena whose blocks plans name."""

    def step(self, plan: Sequence[SequenceStep], *, token: Any = None) -> StepLogits:
        """Runs one step; raises InvalidInput, RunTerminated or EngineFault."""


@dataclass(frozen=True, slots=True)
class Speech:
    """What the answers of a model are made with: its tokens, and which of them end an answer."""

    text: TokenText
    end_tokens: tuple[int, ...]
    vocabulary: int
    context: int


class Lane:
    """The generations of one variant of a model. `draw_seed` seeds those that bring no seed."""

    def __init__(
        self,
        model: str,
        variant: str,
        *,
        engine: Stepper,
        scheduler: DecodeScheduler,
        speech: Speech,
        draw_seed: Callable[[], int],
    ) -> None:
        self.model = model
        self.variant = variant
        self.speech = speech
        self.scheduler = scheduler
        self.engine = engine
        self._draw_seed = draw_seed
        self._last_sequence = 0
        self._last_group = 0
        # Who a living sequence belongs to.
        self.owners: dict[int, Generation] = {}
        self._map = b""
        self._mapped_ns: int | None = None

    def submit(self, generation: Generation, now_ns: int) -> None:
        """Takes a generation into the scheduler's queue, all of its answers or none.

        Raises InvalidInput for what never fits, or Exhausted with the time to try again.
        """
        call = generation.call
        most = call.limits.max_tokens or self.speech.context - len(call.prompt)
        seed = 0
        if not call.sampling.greedy:
            seed = self._draw_seed() if call.sampling.seed is None else call.sampling.seed
        self._last_group += 1
        taken: list[int] = []
        for _ in range(call.limits.answers):
            self._last_sequence += 1
            try:
                self.scheduler.submit(
                    _arrival(call, self._last_sequence, most, self._last_group), now_ns
                )
            except Refused as refused:
                for sequence_id in taken:
                    self.scheduler.cancel(sequence_id)
                    del self.owners[sequence_id]
                raise self._refusal(call, most, refused.reason, refused.retry_after_ns) from None
            taken.append(self._last_sequence)
            self.owners[self._last_sequence] = generation
        generation.answers = {
            sequence_id: self._answer(call, index, most, seed)
            for index, sequence_id in enumerate(taken)
        }

    def drop(self, generation: Generation) -> None:
        """Ends what still lives of a generation; its blocks are free before the next step."""
        for sequence_id in generation.answers:
            self.end(sequence_id, self.scheduler.cancel(sequence_id))

    def finish(self, sequence_id: int) -> None:
        """Ends a sequence whose answer is complete."""
        self.end(sequence_id, self.scheduler.finish(sequence_id))

    def end(self, sequence_id: int, record: SequenceRecord | None) -> None:
        """Notes that the scheduler has let a sequence go."""
        generation = self.owners.pop(sequence_id, None)
        if generation is not None and record is not None:
            generation.records[sequence_id] = record

    def plan(self, now_ns: int) -> Step | None:
        """The next step, its block changes made; None when there is nothing to do."""
        step = self.scheduler.next_step(now_ns)
        if step is None:
            return None
        arena = self.engine.arena
        for change in step.changes:
            if change.kind == Change.ACQUIRE:
                arena.acquire(change.blocks, change.owner)
            elif change.kind == Change.RETAIN:
                arena.retain(change.blocks)
            else:
                arena.release(change.blocks)
        return step

    def members(self, step: Step) -> list[Generation]:
        """The generations that a step works for, each once."""
        found = (self.owners.get(part.sequence_id) for part in step.parts)
        return list(dict.fromkeys(g for g in found if g is not None))

    def run(self, step: Step, token: Any) -> StepLogits:
        """Runs a step; raises RunTerminated, InvalidInput or EngineFault."""
        parts = [
            SequenceStep(part.tokens, part.past, part.blocks, part.wants_logits)
            for part in step.parts
        ]
        return self.engine.step(parts, token=token)

    def refusal_of(self, ended: Ended) -> Exhausted:
        """What the caller of a sequence that was shed is told."""
        return Exhausted(_REFUSALS[Reason.SHED], ended.retry_after_ns)

    def block_map(self, now_ns: int, *, fresh: bool = False) -> bytes:
        """What the arena's blocks are for, as reported: at most a second old, or `fresh`."""
        mapped_ns = self._mapped_ns
        if fresh or mapped_ns is None or now_ns - mapped_ns >= _MAP_NS:
            self._map, self._mapped_ns = cells_of(self.scheduler.block_uses()), now_ns
        return self._map

    def faults(self) -> list[str]:
        """Everything in which scheduler and arena are not sound or not of one mind.

        To be asked when no change waits to be made, as when the lane is idle.
        """
        snapshot = self.scheduler.snapshot()
        found = violations(snapshot)
        if snapshot.ledger.references != self.engine.arena.references():
            found.append("the scheduler and the arena count references differently")
        unknown = {view.sequence_id for view in snapshot.sequences} ^ self.owners.keys()
        return found + [f"sequence {each} is known to one side only" for each in sorted(unknown)]

    def _answer(self, call: GenerationCall, index: int, most: int, seed: int) -> Answer:
        speech, limits = self.speech, call.limits
        ends: Collection[int] = limits.stop_tokens
        if not limits.ignore_end:
            ends = (*ends, *speech.end_tokens)
        sampler = Sampler(
            call.sampling,
            None if call.sampling.greedy else generator_of(seed, index),
            vocabulary=speech.vocabulary,
            occurred=call.prompt,
            logprobs=limits.logprobs,
        )
        return Answer(
            index,
            sampler=sampler,
            text=speech.text.stream(),
            stops=StopStrings(limits.stop),
            end_tokens=frozenset(ends),
            max_tokens=most,
            content=speech.text.token,
        )

    def _refusal(
        self, call: GenerationCall, most: int, reason: str, retry_after_ns: int
    ) -> Exhausted | InvalidInput:
        if reason == Reason.LATE and not retry_after_ns:
            return Exhausted(_HOPELESS)
        if reason != Reason.TOO_LONG:
            return Exhausted(_REFUSALS[reason], retry_after_ns)
        total = self.scheduler.load().total_blocks
        return InvalidInput(
            f"{len(call.prompt)} of the prompt and {most} more never fit: the arena of model "
            f"{self.model!r} holds {total * BLOCK_TOKENS} tokens"
        )


def _arrival(call: GenerationCall, sequence_id: int, most: int, group: int) -> Arrival:
    return Arrival(
        sequence_id=sequence_id,
        tenant=call.tenant,
        prompt=call.prompt,
        max_new_tokens=most,
        arrived_ns=call.arrived_ns,
        deadline_ns=call.deadline_ns,
        first_token_target_ns=call.first_token_target_ns,
        token_target_ns=call.token_target_ns,
        group=group,
        account=call.account,
        account_weight=call.account_weight,
        work_price=call.work_price,
        account_room=call.account_room,
        first_token_target_grows=call.first_token_target_grows,
    )
