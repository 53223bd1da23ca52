"""The decode scheduler: the only planner of one arena.

Plan, run, commit: `next_step` decides what the engine runs next and which blocks change hands
before it, `completed` or `failed` says what came of it. Between the two, `submit`, `cancel` and
`finish` may be called; what they free is given back in the next step's changes.
"""

from __future__ import annotations

from collections.abc import Mapping

from worker.scheduling.admission import slack_ns
from worker.scheduling.blocks import blocks_for
from worker.scheduling.cost import CorrectedCost, StepCost, load_of
from worker.scheduling.door import Doubt, drain_ns, late_ns, with_kept_target
from worker.scheduling.entrance import Entrance
from worker.scheduling.fairness import AccountClocks
from worker.scheduling.giving_way import GivingWay
from worker.scheduling.measures import SequenceMeasures
from worker.scheduling.policies import SLO, SchedulingPolicy
from worker.scheduling.pool import BlockPool
from worker.scheduling.records import (
    ArenaUse,
    Arrival,
    DecodeState,
    Ended,
    Reason,
    Refused,
    SchedulerSnapshot,
    SchedulingSettings,
    SequenceRecord,
    State,
    Step,
)
from worker.scheduling.residency import Residency
from worker.scheduling.sequences import DecodeSequence
from worker.scheduling.state import ranks_of, state_of
from worker.scheduling.step_plan import PlanLimits, Share, mix, part_of, take_turns

_RATIO_GAIN = 0.05
_LEAST_RETRY_NS = 1_000_000


class DecodeScheduler:
    """Plans the steps of one decoder on one arena, under one policy. Not thread-safe."""

    def __init__(
        self,
        settings: SchedulingSettings,
        cost: StepCost,
        policy: SchedulingPolicy = SLO,
    ) -> None:
        blocks = settings.blocks
        if policy.arena_sequences:
            one = blocks_for(policy.sequence_tokens or settings.context)
            blocks = min(blocks, policy.arena_sequences * one)
        self.settings = settings
        self.policy = policy
        self.cost = CorrectedCost(cost)
        self._limits = PlanLimits(
            policy.width or settings.width,
            policy.chunk_tokens or settings.chunk_tokens,
            settings.headroom,
            settings.pass_limit,
            settings.account_step_ns,
        )
        # Between accounts there is more room for what was not foreseen of the other one.
        self._shared = self._limits._replace(headroom=settings.account_headroom)
        self._homes = Residency(
            BlockPool(
                blocks, prefix_cache=settings.prefix_cache, account_share=settings.prefix_share
            ),
            AccountClocks(settings.account_bound_ns),
        )
        self._running: Step | None = None
        self._running_since_ns = 0
        self._steps = 0
        self._arrivals = 0
        self._prompts_turn = True
        # Steps since one had tokens of a prompt, while prompts were in the arena.
        self._decode_turns = 0
        self._ratio = 1.0
        self._generated = 0
        self._shed = 0
        self._doubt = Doubt()
        self._way = GivingWay()
        self._measures = SequenceMeasures()
        self._entrance = Entrance(settings, policy, self.cost, self._homes, self._measures)

    # --- from outside, at any time -----------------------------------------------------

    def submit(self, arrival: Arrival, now_ns: int) -> None:
        """Take one sequence into the queue.

        The answers of one prompt are submitted one after the other with the same `group`.

        Raises:
            Refused: it can never fit (retry-after 0), the queue is full, or its first token
                would come after its target.
            ValueError: an empty prompt, no token to generate, or a known `sequence_id`.
        """
        if not arrival.prompt or arrival.max_new_tokens < 1:
            raise ValueError("a sequence needs a token of prompt and one to generate")
        if self._homes.find(arrival.sequence_id) is not None:
            raise ValueError(f"sequence {arrival.sequence_id} is already here")
        limit = min(arrival.max_new_tokens, self.settings.context - len(arrival.prompt))
        # The last token of an answer is never fed back.
        if limit < 1 or blocks_for(len(arrival.prompt) + limit - 1) > self._homes.pool.total:
            raise Refused(Reason.TOO_LONG)
        if len(self._homes.waiting) >= self.settings.max_waiting:
            raise Refused(Reason.QUEUE_FULL, self._drain_ns())
        if self.policy.by_targets:
            arrival = with_kept_target(arrival, self.cost)
        newcomer = DecodeSequence(arrival, limit, self._arrivals)
        self._homes.look_up(newcomer)
        if self.policy.by_targets and arrival.first_token_target_ns:
            try:
                self._check_first_token(newcomer, now_ns)
            except Refused:
                idle = not (self._homes.resident or self._homes.waiting)
                if not (idle and self._doubt.lets_in(newcomer, now_ns, self.cost.token_ns)):
                    raise
                newcomer.tries = True
        self._arrivals += 1
        self._homes.enter(newcomer)

    def cancel(self, sequence_id: int) -> SequenceRecord | None:
        """Forget a sequence; its blocks are free before the next plan.

        Returns what it got, None for one that is not here (any more).
        """
        sequence = self._homes.find(sequence_id)
        if sequence is None or sequence.cancelled:
            return None
        if self._runs(sequence_id):
            sequence.cancelled = True
        else:
            sequence.account(self._homes.held_at_ns)
            self._homes.remove(sequence)
        return sequence.record()

    def finish(self, sequence_id: int) -> SequenceRecord | None:
        """End a sequence whose answer is complete before its limit; otherwise as `cancel`."""
        sequence = self._homes.find(sequence_id)
        if sequence is not None and not sequence.cancelled:
            self._learn_ratio(sequence)
        return self.cancel(sequence_id)

    # --- the loop of plan, run, commit -------------------------------------------------

    def next_step(self, now_ns: int) -> Step | None:
        """What to do next; None when there is nothing to do.

        Raises RuntimeError while a step runs.
        """
        if self._running is not None:
            raise RuntimeError("a step is running: it must be completed or failed first")
        self._homes.hold(now_ns)
        ended = self._expire(now_ns)
        if self.policy.shed:
            ended += self._shed_late(now_ns)
        self._entrance.admit(now_ns, self._ratio)
        shares = self._secure(self._choose(now_ns), now_ns)
        if not shares and self._homes.resident:
            oldest = self._homes.oldest()
            count = min(oldest.outstanding, self._limits.chunk_tokens)
            shares = self._secure([Share(oldest, count)], now_ns)
        parts = tuple(part_of(share) for share in shares)
        chosen = {part.sequence_id for part in parts}
        self._count_turn(shares)
        for sequence in self._homes.resident.values():
            sequence.idle_steps = 0 if sequence.sequence_id in chosen else sequence.idle_steps + 1
        changes = self._homes.pool.drain()
        preempted, self._homes.evicted = tuple(self._homes.evicted), []
        if not (parts or changes or ended):
            return None
        self._steps += 1
        predicted = int(self.cost.predict_ns(load_of(parts))) if parts else 0
        step = Step(self._steps, parts, changes, tuple(ended), predicted, preempted)
        if parts:
            self._running = step
            self._running_since_ns = now_ns
        return step

    def completed(
        self,
        step: Step,
        tokens: Mapping[int, int],
        now_ns: int,
        took_ns: int,
        cpu_ns: int | None = None,
    ) -> tuple[Ended, ...]:
        """The step ran in `took_ns`; `tokens` holds one token for each part with logits.

        Its sequences are charged `cpu_ns`, or the time it took where that is not known.

        Costs are learnt from all of the time between its plan and `now_ns`, when its tokens are
        chosen. Returns the sequences that this token ended by their limit; they are gone already.
        Raises ValueError, changing nothing, for another step or a token that is missing.
        """
        self._check_running(step)
        missing = [p.sequence_id for p in step.parts if p.wants_logits]
        if any(s not in tokens and not self._homes.resident[s].cancelled for s in missing):
            raise ValueError("a sequence with logits has no token")
        self._running = None
        self._doubt.settle()
        self._homes.hold(now_ns)
        self.cost.learn(load_of(step.parts), now_ns - self._running_since_ns)
        self._measures.ran(step, took_ns)
        self._homes.charge(step, self.cost, took_ns if cpu_ns is None else cpu_ns, took_ns)
        ended = []
        for part in step.parts:
            sequence = self._homes.resident[part.sequence_id]
            sequence.account(now_ns)
            self._measures.computed(sequence, len(part.tokens))
            sequence.computed += len(part.tokens)
            self._homes.publish(sequence)
            if sequence.cancelled:
                self._homes.remove(sequence)
            elif part.wants_logits:
                self._measures.token(sequence, now_ns)
                sequence.append(tokens[part.sequence_id], now_ns)
                self._generated += 1
                if not sequence.remaining:
                    self._learn_ratio(sequence)
                    self._homes.remove(sequence)
                    ended.append(Ended(sequence.sequence_id, Reason.LENGTH, sequence.record()))
        return tuple(ended)

    def failed(self, step: Step, cpu_ns: int = 0) -> None:
        """The step did not happen: its tokens are outstanding as before, cancelled ones go.

        Its sequences are charged for what it took all the same.
        """
        self._check_running(step)
        self._running = None
        if cpu_ns:
            self._homes.charge(step, self.cost, cpu_ns)
        for part in step.parts:
            sequence = self._homes.resident[part.sequence_id]
            if sequence.cancelled:
                self._homes.remove(sequence)

    # --- what is going on --------------------------------------------------------------

    def cached_tokens(self, sequence_id: int) -> int:
        """Prompt tokens found in the prefix cache at admission; 0 before it.

        Raises KeyError for a sequence that is not here.
        """
        return self._sequence(sequence_id).cached_tokens

    def record(self, sequence_id: int) -> SequenceRecord:
        """What a living sequence got so far; KeyError for one that is not here."""
        return self._sequence(sequence_id).record()

    def load(self) -> DecodeState:
        """The state to report."""
        return state_of(self._homes, generated=self._generated, shed=self._shed)

    def measured(self) -> SequenceMeasures:
        """A copy of what was measured so far."""
        return self._measures.copy(self._homes.resident.values())

    def block_uses(self) -> bytes:
        """What each block of the arena is for, one byte each; see `BlockUse`."""
        return self._homes.pool.uses()

    def arena_use(self) -> ArenaUse:
        """What the arena's blocks are for, by tenant where they are cached."""
        return self._homes.pool.use()

    @property
    def clocks(self) -> AccountClocks:
        """Whose turn it is among accounts; for looking only."""
        return self._homes.clocks

    def snapshot(self) -> SchedulerSnapshot:
        """Everything as a value, for `invariants.violations`."""
        sequences = [*self._homes.resident.values(), *self._homes.waiting.values()]
        running = () if self._running is None else self._running.parts
        return SchedulerSnapshot(
            ledger=self._homes.pool.snapshot(),
            sequences=tuple(s.view() for s in sequences),
            cached=self._homes.pool.cached(),
            running=tuple(part.sequence_id for part in running),
            pending_changes=self._homes.pool.pending,
            peak=self._homes.peak,
            pass_limit=self.settings.pass_limit,
        )

    # --- inside ------------------------------------------------------------------------

    def _sequence(self, sequence_id: int) -> DecodeSequence:
        sequence = self._homes.find(sequence_id)
        if sequence is None:
            raise KeyError(sequence_id)
        return sequence

    def _runs(self, sequence_id: int) -> bool:
        running = self._running
        return running is not None and any(p.sequence_id == sequence_id for p in running.parts)

    def _check_running(self, step: Step) -> None:
        if self._running is not step:
            raise ValueError(f"step {step.number} is not the one that runs")

    def _check_first_token(self, newcomer: DecodeSequence, now_ns: int) -> None:
        """Refuses a newcomer whose first token would be late."""
        running = self._running
        start_ns = now_ns
        under_way: dict[int, int] = {}
        if running is not None:
            start_ns = max(now_ns, self._running_since_ns + running.predicted_ns)
            under_way = {part.sequence_id: len(part.tokens) for part in running.parts}
        late = late_ns(
            newcomer,
            self._homes,
            self.cost,
            start_ns,
            under_way=under_way,
            headroom=self._entrance.headroom,
            ratio=self._ratio,
            ranks=ranks_of(self._homes, newcomer),
        )
        alone = self.cost.token_ns * newcomer.debt
        late += self._way.room_ns(newcomer, late + newcomer.first_due_ns - start_ns - alone)
        self._way.told(newcomer, late > 0.0)
        if late > 0.0:
            hopeless = slack_ns(newcomer, now_ns, self.cost.token_ns) <= 0.0
            raise Refused(Reason.LATE, 0 if hopeless else max(_LEAST_RETRY_NS, int(late)))

    def _drain_ns(self) -> int:
        return max(_LEAST_RETRY_NS, int(drain_ns(self._homes, self.cost)))

    def _expire(self, now_ns: int) -> list[Ended]:
        return self._end_all(
            [s for s in self._everybody() if s.expired(now_ns)],
            Reason.EXPIRED,
            now_ns,
        )

    def _shed_late(self, now_ns: int) -> list[Ended]:
        """Ends what cannot have its first token in time even if nothing else ran."""
        token_ns, step_ns = self.cost.token_ns, self.cost.rest_ns(0, 0)
        late = [
            s
            for s in self._homes.waiting.values()
            if not (s.generated or s.tries) and slack_ns(s, now_ns, token_ns) < step_ns
        ]
        retry_ns = self._drain_ns() if late else 0
        self._shed += len(late)
        return self._end_all(late, Reason.SHED, now_ns, retry_ns)

    def _end_all(
        self, sequences: list[DecodeSequence], reason: str, now_ns: int, retry_ns: int = 0
    ) -> list[Ended]:
        ended = []
        for sequence in sequences:
            sequence.account(now_ns)
            self._homes.remove(sequence)
            ended.append(Ended(sequence.sequence_id, reason, sequence.record(), retry_ns))
        return ended

    def _everybody(self) -> list[DecodeSequence]:
        return [*self._homes.resident.values(), *self._homes.waiting.values()]

    def _count_turn(self, shares: list[Share]) -> None:
        prompts = [s for s in self._homes.resident.values() if s.state == State.PREFILLING]
        read = any(share.sequence.state == State.PREFILLING for share in shares)
        self._decode_turns = 0 if read or not prompts else self._decode_turns + 1

    def _choose(self, now_ns: int) -> list[Share]:
        residents = self._homes.residents()
        if self.policy.mixed:
            return mix(
                residents,
                self.cost,
                self._shared if self._homes.clocks.several else self._limits,
                self._ratio,
                now_ns,
                ranks_of(self._homes),
                prompts_due=self._decode_turns >= self.settings.decode_turns,
            )
        shares = take_turns(residents, self._limits, self._prompts_turn)
        if shares:
            self._prompts_turn = shares[0].sequence.state != State.PREFILLING
        return shares

    def _secure(self, shares: list[Share], now_ns: int) -> list[Share]:
        return self._homes.secure(shares, self.cost, now_ns, self._ratio)

    def _learn_ratio(self, sequence: DecodeSequence) -> None:
        taken = sequence.generated / sequence.limit / sequence.arrival.work_price
        self._ratio += _RATIO_GAIN * (taken - self._ratio)
