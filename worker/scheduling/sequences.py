"""One sequence's life in the scheduler, and the account of what it got."""

from __future__ import annotations

from worker.scheduling.blocks import BLOCK_TOKENS, blocks_for
from worker.scheduling.records import Arrival, SequenceRecord, SequenceView, State


class DecodeSequence:
    """Tokens, blocks and account of one sequence. The scheduler owns and changes it.

    `tokens` are the prompt and what was sampled; the first `computed` of them lie in `blocks`.
    What is not computed is outstanding: a prompt's rest, or the one token sampled last.
    """

    def __init__(self, arrival: Arrival, limit: int, order: int) -> None:
        self.arrival = arrival
        self.sequence_id = arrival.sequence_id
        self.tenant = arrival.tenant
        self.account_id = arrival.account
        self.prompt_tokens = len(arrival.prompt)
        self.limit = limit
        self.order = order
        self.state = State.WAITING
        self.tokens = list(arrival.prompt)
        self.blocks: list[int] = []
        self.computed = 0
        self.published = 0
        self.cancelled = False
        self.passed_over = 0
        self.idle_steps = 0
        self.cached_tokens = 0
        # Tokens that were cached when it was admitted, or while it waits, when last looked at.
        self.hint_tokens = 0
        self.admitted_ns = -1
        self.first_token_ns = -1
        self.last_token_ns = -1
        self.max_gap_ns = 0
        self.prefill_ns = 0
        self.decode_ns = 0
        self.live_token_ns = 0
        # Step work that it is to take yet, as foreseen when it was let in.
        self.promised_ns = 0.0
        # Whether the prefix cache takes no more of its blocks.
        self.uncached = False
        self.preemptions = 0
        # Whether it was taken to learn what steps cost, though it would be late by what is known.
        self.tries = False
        self._accounted_ns = arrival.arrived_ns

    @property
    def generated(self) -> int:
        """Tokens of the answer."""
        return len(self.tokens) - self.prompt_tokens

    @property
    def outstanding(self) -> int:
        """Tokens that are not computed."""
        return len(self.tokens) - self.computed

    @property
    def debt(self) -> int:
        """Tokens to compute before its next token, as far as is known."""
        return self.outstanding if self.resident else self.whole

    @property
    def whole(self) -> int:
        """Tokens to compute from its admission to its next token, as far as is known."""
        return max(1, len(self.tokens) - self.hint_tokens)

    @property
    def remaining(self) -> int:
        """Tokens of the answer that may still come."""
        return self.limit - self.generated

    @property
    def most_tokens(self) -> int:
        """Tokens it may have in the arena: the last one of its answer is never fed back."""
        return self.prompt_tokens + self.limit - 1

    @property
    def resident(self) -> bool:
        """Whether it holds a place in the arena."""
        return self.state in (State.PREFILLING, State.DECODING)

    @property
    def first_due_ns(self) -> int:
        """When its first token is due; 0 without a target."""
        target = self.arrival.first_token_target_ns
        return self.arrival.arrived_ns + target if target else 0

    def expired(self, now_ns: int) -> bool:
        """Whether its deadline has come."""
        deadline = self.arrival.deadline_ns
        return deadline is not None and deadline <= now_ns

    def room(self) -> int:
        """Tokens that fit into its blocks beyond those computed."""
        return len(self.blocks) * BLOCK_TOKENS - self.computed

    def blocks_missing(self, count: int) -> int:
        """Blocks to take before `count` more tokens can be computed."""
        return max(0, blocks_for(self.computed + count) - len(self.blocks))

    def admit(self, hit: list[int], now_ns: int) -> None:
        """Becomes resident with the blocks of a cached prefix."""
        # Until now it held nothing.
        self.account(now_ns)
        self.state = State.PREFILLING
        self.blocks = hit
        self.computed = len(hit) * BLOCK_TOKENS
        self.published = len(hit)
        self.hint_tokens = self.computed
        self.passed_over = 0
        self.idle_steps = 0
        if self.admitted_ns < 0:
            self.admitted_ns = now_ns
            self.cached_tokens = self.computed

    def preempt(self, now_ns: int) -> list[int]:
        """Gives up its place and returns its blocks."""
        self.account(now_ns)
        blocks, self.blocks = self.blocks, []
        self.computed = 0
        self.published = 0
        self.uncached = False
        self.hint_tokens = 0
        self.preemptions += 1
        self.idle_steps = 0
        self.state = State.PREEMPTED
        return blocks

    def end(self) -> list[int]:
        """Is over; returns its blocks."""
        blocks, self.blocks = self.blocks, []
        self.computed = 0
        self.state = State.DONE
        return blocks

    def append(self, token: int, now_ns: int) -> None:
        """One sampled token."""
        self.tokens.append(token)
        if self.first_token_ns < 0:
            self.first_token_ns = now_ns
        else:
            self.max_gap_ns = max(self.max_gap_ns, now_ns - self.last_token_ns)
        self.last_token_ns = now_ns
        self.state = State.DECODING

    def account(self, now_ns: int) -> None:
        """Adds the time since the last account to what its tokens held."""
        self.live_token_ns += self.computed * max(0, now_ns - self._accounted_ns)
        self._accounted_ns = max(self._accounted_ns, now_ns)

    def record(self) -> SequenceRecord:
        """The account so far."""
        arrived = self.arrival.arrived_ns
        gaps = self.generated - 1
        until = self._accounted_ns if self.admitted_ns < 0 else self.admitted_ns
        return SequenceRecord(
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            generated_tokens=self.generated,
            queue_ns=max(0, until - arrived),
            first_token_ns=max(0, self.first_token_ns - arrived) if self.generated else 0,
            total_ns=self._accounted_ns - arrived,
            mean_gap_ns=(self.last_token_ns - self.first_token_ns) // gaps if gaps > 0 else 0,
            max_gap_ns=self.max_gap_ns,
            prefill_ns=self.prefill_ns,
            decode_ns=self.decode_ns,
            live_token_ns=self.live_token_ns,
            preemptions=self.preemptions,
        )

    def view(self) -> SequenceView:
        """The sequence as a value."""
        return SequenceView(
            sequence_id=self.sequence_id,
            tenant=self.tenant,
            state=self.state,
            prompt_tokens=self.prompt_tokens,
            length=len(self.tokens),
            limit=self.limit,
            computed=self.computed,
            blocks=tuple(self.blocks),
            passed_over=self.passed_over,
            idle_steps=self.idle_steps,
        )
