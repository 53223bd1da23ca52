"""What a scheduler reports of itself, and the order and work of those who wait."""

from __future__ import annotations

from collections.abc import Mapping

from worker.scheduling.admission import NO_RANKS, expected_more
from worker.scheduling.cost import CorrectedCost
from worker.scheduling.records import DecodeState, State
from worker.scheduling.residency import Residency
from worker.scheduling.sequences import DecodeSequence


def state_of(homes: Residency, *, generated: int, shed: int) -> DecodeState:
    """The state to report; `generated` tokens and `shed` sequences are totals."""
    residents = homes.resident.values()
    prefilling = [s for s in residents if s.state == State.PREFILLING]
    decoding = [s for s in residents if s.state == State.DECODING]
    pending = [*prefilling, *homes.waiting.values()]
    by_account: dict[str, int] | None = None
    if homes.clocks.several:
        by_account = {}
        for sequence in pending:
            account = sequence.account_id
            by_account[account] = by_account.get(account, 0) + sequence.outstanding
    return DecodeState(
        waiting=len(homes.waiting),
        prefilling=len(prefilling),
        decoding=len(decoding),
        pending_prompt_tokens=sum(s.outstanding for s in pending),
        cached_tokens=sum(s.computed for s in decoding),
        total_blocks=homes.pool.total,
        free_blocks=homes.pool.free,
        evictable_blocks=homes.pool.evictable,
        generated_tokens=generated,
        prefix_hit_tokens=homes.hits,
        preemptions=homes.preemptions,
        shed=shed,
        live_token_ms=homes.held_token_ns // 1_000_000,
        pending_by_account=by_account,
    )


def ranks_of(homes: Residency, newcomer: DecodeSequence | None = None) -> Mapping[str, float]:
    """How far ahead each account is whose prompts wait or are computed."""
    if not homes.clocks.several and newcomer is None:
        return NO_RANKS
    there = [s for s in homes.resident.values() if s.state == State.PREFILLING]
    there += homes.waiting.values()
    if newcomer is not None:
        there.append(newcomer)
    return homes.clocks.ranks(there)


def work_ns(sequence: DecodeSequence, cost: CorrectedCost, ratio: float) -> float:
    """Step work that it is to take: its prompt, and as much of an answer as is expected."""
    more = expected_more(sequence, ratio)
    middle = len(sequence.tokens) + int(more / 2)
    return cost.token_ns * sequence.debt + more * cost.join_ns(middle)
