"""Who waits and who holds blocks; every move between the two, with its blocks."""

from __future__ import annotations

from worker.scheduling.blocks import BLOCK_TOKENS, blocks_for
from worker.scheduling.cost import CorrectedCost, load_of
from worker.scheduling.fairness import AccountClocks
from worker.scheduling.pool import BlockPool
from worker.scheduling.preemption import choose_victim
from worker.scheduling.records import State, Step
from worker.scheduling.sequences import DecodeSequence
from worker.scheduling.step_plan import Share

_TENANTS_KEPT = 64


class Residency:
    """Waiting and resident sequences by id, and their blocks. Not thread-safe.

    `clocks` say whose turn it is among accounts: they are told of every move. `hits` counts prompt
    tokens that were found in the prefix cache, `peak` the most sequences that lived at once.
    `held_token_ns` is the integral of the tokens that residents held until `held_at_ns`, each
    counted as often as it is held.
    """

    def __init__(self, pool: BlockPool, clocks: AccountClocks) -> None:
        self.pool = pool
        self.clocks = clocks
        self.waiting: dict[int, DecodeSequence] = {}
        self.resident: dict[int, DecodeSequence] = {}
        self.peak = 0
        self.hits = 0
        self.preemptions = 0
        self.held_token_ns = 0
        self.held_at_ns = 0
        # Those preempted since this was last emptied.
        self.evicted: list[int] = []

    def find(self, sequence_id: int) -> DecodeSequence | None:
        """A living sequence, or None."""
        return self.resident.get(sequence_id) or self.waiting.get(sequence_id)

    def enter(self, sequence: DecodeSequence) -> None:
        """A newcomer waits."""
        self.waiting[sequence.sequence_id] = sequence
        self.clocks.begin(sequence.account_id, sequence.arrival.account_weight)
        self.peak = max(self.peak, len(self.waiting) + len(self.resident))

    def look_up(self, sequence: DecodeSequence) -> None:
        """Notes how many of its tokens are cached, or will be when its group's first is."""
        full = (len(sequence.tokens) - 1) // BLOCK_TOKENS
        if self.pool.caches and self._shares(sequence, [*self.waiting.values(), *self.residents()]):
            sequence.hint_tokens = full * BLOCK_TOKENS
        else:
            hit = self.pool.match(sequence.tenant, sequence.tokens)
            sequence.hint_tokens = len(hit) * BLOCK_TOKENS

    def follows(self, sequence: DecodeSequence) -> bool:
        """Whether one of its group computes their prompt now, so that waiting saves the work."""
        if not self.pool.caches or sequence.prompt_tokens <= BLOCK_TOKENS or sequence.generated:
            return False
        full = (sequence.prompt_tokens - 1) // BLOCK_TOKENS
        return self._shares(sequence, [s for s in self.residents() if s.published < full])

    def hold(self, now_ns: int) -> None:
        """Count what residents held since the last look, while nothing changed hands."""
        if now_ns > self.held_at_ns:
            held = sum([sequence.computed for sequence in self.resident.values()])
            self.held_token_ns += held * (now_ns - self.held_at_ns)
            self.held_at_ns = now_ns

    def residents(self) -> list[DecodeSequence]:
        """Those in the arena."""
        return list(self.resident.values())

    def oldest(self) -> DecodeSequence:
        """The resident that came first: it is never preempted, so somebody always ends."""
        return min(self.resident.values(), key=lambda s: s.order)

    def has_room(self, sequence: DecodeSequence, *, reserve: bool) -> bool:
        """Whether there are blocks for it now.

        Those for its whole possible length with `reserve`, else for its tokens beside what
        the prompts in the arena still need and one block for the growth of each resident.
        """
        hit = self.pool.match(sequence.tenant, sequence.tokens)
        shared = sum(1 for block in hit if self.pool.references(block) > 1)
        if reserve:
            return blocks_for(sequence.most_tokens) - shared <= self.pool.available
        if not self.resident:
            return True
        promised = sum(
            s.blocks_missing(s.outstanding)
            for s in self.resident.values()
            if s.state == State.PREFILLING
        )
        needed = blocks_for(len(sequence.tokens)) - shared + len(self.resident) + 1
        return needed + promised <= self.pool.available

    def admit(
        self, sequence: DecodeSequence, now_ns: int, *, reserve: bool, work_ns: float
    ) -> None:
        """Moves it into the arena, with what of its tokens is cached; it may take `work_ns` there.

        Raises OutOfBlocks when `reserve` asks for more than there is: ask `has_room` first.
        """
        self.clocks.promise(sequence.account_id, work_ns)
        sequence.promised_ns = work_ns
        self.clocks.end(sequence.account_id)
        hit = self.pool.match(sequence.tenant, sequence.tokens)
        self.pool.share(hit)
        del self.waiting[sequence.sequence_id]
        self.resident[sequence.sequence_id] = sequence
        first = sequence.admitted_ns < 0
        sequence.admit(hit, now_ns)
        if first:
            self.hits += sequence.cached_tokens
        if reserve:
            missing = blocks_for(sequence.most_tokens) - len(hit)
            sequence.blocks += self.pool.take(sequence.tenant, missing)

    def preempt(self, sequence: DecodeSequence, now_ns: int) -> None:
        """Takes its blocks away; it waits again, with its tokens."""
        self._release(sequence)
        self.pool.give_back(sequence.preempt(now_ns))
        del self.resident[sequence.sequence_id]
        self.waiting[sequence.sequence_id] = sequence
        self.clocks.begin(sequence.account_id, sequence.arrival.account_weight)
        self.preemptions += 1
        self.evicted.append(sequence.sequence_id)

    def remove(self, sequence: DecodeSequence) -> None:
        """It is over, wherever it is."""
        self._release(sequence)
        if self.waiting.pop(sequence.sequence_id, None) is not None:
            self.clocks.end(sequence.account_id)
        self.resident.pop(sequence.sequence_id, None)
        if not self.waiting and not self.resident:
            self.clocks.reset()
        self.pool.give_back(sequence.end())
        if self.pool.tenants > _TENANTS_KEPT + len(self.waiting) + len(self.resident):
            living = {s.tenant for s in (*self.waiting.values(), *self.resident.values())}
            self.pool.forget_tenants(living)

    def charge(self, step: Step, cost: CorrectedCost, cpu_ns: int, took_ns: int = 0) -> None:
        """Divides a step's CPU time among its sequences by what each part costs.

        Accounts are told of the time it took; of a step that failed they are not.
        """
        weights = [cost.predict_ns(load_of((part,))) for part in step.parts]
        whole = sum(weights)
        for part, weight in zip(step.parts, weights, strict=True):
            sequence = self.resident[part.sequence_id]
            share = int(cpu_ns * weight / whole)
            served = took_ns * weight / whole
            kept = min(sequence.promised_ns, served)
            sequence.promised_ns -= kept
            self.clocks.serve(sequence.account_id, kept, served - kept)
            if sequence.state == State.DECODING:
                sequence.decode_ns += share
            else:
                sequence.prefill_ns += share

    def publish(self, sequence: DecodeSequence) -> None:
        """Puts the blocks it has filled into the prefix cache."""
        full = sequence.computed // BLOCK_TOKENS
        for place in range(sequence.published, full if self.pool.caches else 0):
            sequence.published = place + 1
            if sequence.uncached:
                continue
            begin = place * BLOCK_TOKENS
            cached = self.pool.publish(
                sequence.tenant,
                sequence.blocks[:place],
                tuple(sequence.tokens[begin : begin + BLOCK_TOKENS]),
                sequence.blocks[place],
                account=sequence.account_id,
                most=self._cached_most(),
            )
            if cached < 0:
                # What follows a block that is not cached could not be found.
                sequence.uncached = True
            else:
                sequence.blocks[place] = cached

    def secure(
        self, shares: list[Share], cost: CorrectedCost, now_ns: int, ratio: float
    ) -> list[Share]:
        """Takes the blocks that these shares need; returns what of them can run, in order.

        The oldest sequence is served first and may preempt anybody, those that decode anybody
        who has no blocks of this step yet; a prompt takes what is left.
        """
        if not shares:
            return []
        oldest = self.oldest()
        secured: dict[int, Share] = {}
        for share in sorted(shares, key=lambda s: s.sequence.order):
            sequence, count = share
            if not sequence.resident:
                continue
            if sequence is oldest or sequence.state == State.DECODING:
                self._make_room(sequence, count, secured, cost, now_ns, ratio)
            count = min(count, sequence.room() + self.pool.available * BLOCK_TOKENS)
            if count > 0:
                sequence.blocks += self.pool.take(sequence.tenant, sequence.blocks_missing(count))
                secured[sequence.sequence_id] = Share(sequence, count)
        ids = [share.sequence.sequence_id for share in shares]
        return [secured[i] for i in ids if i in secured]

    def _release(self, sequence: DecodeSequence) -> None:
        """It takes nothing more, whatever it was let in with."""
        self.clocks.release(sequence.account_id, sequence.promised_ns)
        sequence.promised_ns = 0.0

    def _cached_most(self) -> int:
        """Blocks of one account that the prefix cache may hold."""
        return self.pool.account_most if self.clocks.several else self.pool.total

    def _make_room(
        self,
        sequence: DecodeSequence,
        count: int,
        secured: dict[int, Share],
        cost: CorrectedCost,
        now_ns: int,
        ratio: float,
    ) -> None:
        while sequence.blocks_missing(count) > self.pool.available:
            oldest = self.oldest()
            others = [
                s
                for s in self.resident.values()
                if s is not sequence and s is not oldest and s.sequence_id not in secured
            ]
            victim = choose_victim(others, cost, now_ns, ratio)
            if victim is None:
                return
            self.preempt(victim, now_ns)

    def _shares(self, sequence: DecodeSequence, others: list[DecodeSequence]) -> bool:
        group = sequence.arrival.group
        if group < 0:
            return False
        return any(
            s.arrival.group == group
            and s.tenant == sequence.tenant
            and s is not sequence
            and s.arrival.prompt == sequence.arrival.prompt
            for s in others
        )
