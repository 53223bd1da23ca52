"""What the decode scheduler is asked and what it answers: plain values, times in ns.

All clocks are one monotonic clock of the caller.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

from worker.scheduling.blocks import LedgerSnapshot


class Reason:
    """Stable words for why a sequence was refused or ended by the scheduler.

    Refused at `submit`: TOO_LONG never fits, QUEUE_FULL and LATE (its first token would be) do
    not now. Ended in a step: SHED (its first token became too late) and EXPIRED (its deadline
    passed). LENGTH ends it when its last token is sampled.
    """

    TOO_LONG: Final = "too-long"
    QUEUE_FULL: Final = "queue-full"
    LATE: Final = "first-token-late"
    SHED: Final = "shed"
    EXPIRED: Final = "expired"
    LENGTH: Final = "length"


class Refused(Exception):
    """A sequence was not taken. `retry_after_ns` is 0 when waiting does not help."""

    def __init__(self, reason: str, retry_after_ns: int = 0) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry_after_ns = retry_after_ns


@dataclass(frozen=True, slots=True)
class Arrival:
    """One sequence to generate.

    `prompt` are its token ids, `max_new_tokens` bounds the answer. The first token is due
    `first_token_target_ns` after `arrived_ns`, each further one `token_target_ns` after the one
    before on average; 0 has no target. A target of the first token that `grows` is one that nobody
    named: it is at least twice what the prompt takes alone. `deadline_ns` is when it ends whatever
    it has, None never. The n answers of one prompt have the same `group` and share its full
    blocks. Accounts are served in turn, by their weights; `tenant` is whose cached prefixes it may
    use. Its answer is expected to be `work_price` times as long as usual ones of its limit, and its
    account's sequences may fill the part `account_room` of the time that steps leave for those who
    decode.
    """

    sequence_id: int
    tenant: str
    prompt: tuple[int, ...]
    max_new_tokens: int
    arrived_ns: int
    deadline_ns: int | None = None
    first_token_target_ns: int = 0
    token_target_ns: int = 0
    group: int = -1
    account: str = ""
    account_weight: float = 1.0
    work_price: float = 1.0
    account_room: float = 1.0
    first_token_target_grows: bool = False


class State(IntEnum):
    """Where a sequence is. Only PREFILLING and DECODING ones hold blocks.

    A sequence that was preempted keeps its tokens and computes them again.
    """

    WAITING = 0
    PREFILLING = 1
    DECODING = 2
    PREEMPTED = 3
    DONE = 4


class StepPart(NamedTuple):
    """One sequence's part in a step: `tokens` follow the `past` tokens that `blocks` hold."""

    sequence_id: int
    tokens: Sequence[int]
    past: int
    blocks: tuple[int, ...]
    wants_logits: bool


class Change:
    """Kinds of change to blocks, named as the arena's calls."""

    ACQUIRE: Final = "acquire"
    RETAIN: Final = "retain"
    RELEASE: Final = "release"


class BlockChange(NamedTuple):
    """One call on the arena; `owner` is the tenant's number and matters to ACQUIRE only."""

    kind: str
    blocks: tuple[int, ...]
    owner: int


@dataclass(frozen=True, slots=True)
class SequenceRecord:
    """What a sequence got and took, so far or in all; times in ns.

    `queue_ns` is arrival to admission, `first_token_ns` arrival to first token (0: none yet),
    `total_ns` arrival to the last account. Gaps lie between tokens of the answer. `prefill_ns`
    and `decode_ns` are its shares of the CPU time of the steps it was in, `live_token_ns` the
    tokens it held times how long. `cached_tokens` of the prompt were not computed, at its first
    admission.
    """

    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    queue_ns: int
    first_token_ns: int
    total_ns: int
    mean_gap_ns: int
    max_gap_ns: int
    prefill_ns: int
    decode_ns: int
    live_token_ns: int
    preemptions: int


@dataclass(frozen=True, slots=True)
class Ended:
    """A sequence that the scheduler ended, for a `Reason`; its blocks are given back already.

    `retry_after_ns` advises the caller of one that was shed.
    """

    sequence_id: int
    reason: str
    record: SequenceRecord
    retry_after_ns: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """What to do next: apply `changes` in order, answer `ended`, then run `parts` together.

    `predicted_ns` is how long the run should take, `preempted` are sequences that gave up their
    place for it. Without parts there is nothing to run and the step must be neither `completed`
    nor `failed`.
    """

    number: int
    parts: tuple[StepPart, ...]
    changes: tuple[BlockChange, ...]
    ended: tuple[Ended, ...]
    predicted_ns: int
    preempted: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class SchedulingSettings:
    """What the scheduler plans for.

    `blocks` is the arena's size, `context` the most tokens of a sequence, `max_waiting` bounds
    the queue. `chunk_tokens` bounds the prompt tokens of one step, `width` its sequences that
    decode (policies of their own bring their own). `headroom` is the part of the token target
    that is planned with. A sequence is passed over at most `pass_limit` times by later ones of its
    account. `prefix_cache` False computes every prompt. Of several accounts one may be
    `account_bound_ns` of step work ahead of another and still come first by its due time, and
    have that part of the blocks, `prefix_share`, in the prefix cache; `account_headroom` takes the
    place of `headroom` then. Prompts of accounts take of a step what those who decode leave of
    `account_step_ns`, or a block's tokens if that is more.
    After `decode_turns` steps without a token of the prompts in the arena the next one has some of
    them.
    """

    blocks: int
    context: int
    max_waiting: int = 256
    chunk_tokens: int = 256
    width: int = 64
    headroom: float = 0.95
    pass_limit: int = 32
    prefix_cache: bool = True
    account_bound_ns: int = 20_000_000
    account_step_ns: int = 40_000_000
    account_headroom: float = 0.8
    prefix_share: float = 0.5
    decode_turns: int = 32


@dataclass(frozen=True, slots=True)
class DecodeState:
    """The state to report; counts of now, then totals since the start.

    `cached_tokens` are those that decoding sequences attend to in one step, `free_blocks` are
    held by nobody, `evictable_blocks` by the prefix cache alone. `live_token_ms` is the integral of
    the tokens that residents held over time, each counted as often as it is held.
    `pending_by_account` divides `pending_prompt_tokens`; None unless several accounts are here.
    """

    waiting: int
    prefilling: int
    decoding: int
    pending_prompt_tokens: int
    cached_tokens: int
    total_blocks: int
    free_blocks: int
    evictable_blocks: int
    generated_tokens: int
    prefix_hit_tokens: int
    preemptions: int
    shed: int
    live_token_ms: int = 0
    pending_by_account: dict[str, int] | None = None


@dataclass(frozen=True, slots=True)
class ArenaUse:
    """What blocks are for: `held` by sequences, `cached` by prefix caches alone, by tenant.

    `touched` counts those that were ever given.
    """

    held: int
    cached: Mapping[str, int]
    touched: int


@dataclass(frozen=True, slots=True)
class SequenceView:
    """One sequence as a value: `length` counts its tokens, `computed` those in its blocks."""

    sequence_id: int
    tenant: str
    state: State
    prompt_tokens: int
    length: int
    limit: int
    computed: int
    blocks: tuple[int, ...]
    passed_over: int
    idle_steps: int


@dataclass(frozen=True, slots=True)
class SchedulerSnapshot:
    """The whole scheduler as a value.

    `cached` are the prefix cache's blocks with their tenants, `running` the sequences of the
    step that runs, `peak` the most sequences that lived at once.
    """

    ledger: LedgerSnapshot
    sequences: tuple[SequenceView, ...]
    cached: tuple[tuple[int, str], ...]
    running: tuple[int, ...]
    pending_changes: int
    peak: int
    pass_limit: int
