"""Who may hold how many KV blocks, and what that is worth in steps. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum

from controlplane.policy.tenancy.accounts import Account

# Who reserves no blocks where others do has this part of a usual weight.
_LEAST_WEIGHT = 0.1

# Tokens in a block of the decode workers' arenas.
KV_BLOCK_TOKENS = 16


class Verdict(Enum):
    """Whether a generation may hold its blocks."""

    HOLDS = "holds"
    TOO_MANY = "too-many-generations"
    TOO_MUCH = "too-many-blocks"
    NEVER = "more-than-it-may-ever-hold"


def turn_weights(accounts: Mapping[str, Account]) -> dict[str, float]:
    """Each account's share of decode workers' steps, over that of a usual one.

    That is its reserved blocks over the mean of those who have any; 1 for all where nobody has.
    """
    reserved = {name: account.config.kv_block_s_per_s for name, account in accounts.items()}
    some = [blocks for blocks in reserved.values() if blocks]
    if not some:
        return dict.fromkeys(reserved, 1.0)
    mean = sum(some) / len(some)
    return {name: max(_LEAST_WEIGHT, blocks / mean) for name, blocks in reserved.items()}


def turn_room(account: Account, others: Iterable[Account], total: int) -> float:
    """The part of steps that an account may fill: of `total` blocks, what others did not reserve.

    A place in steps is left no sooner than a block is, so reserved ones are not lent either.
    """
    kept = sum(other.config.kv_block_s_per_s for other in others)
    if total <= 0 or not kept:
        return 1.0
    return min(1.0, max(account.config.kv_block_s_per_s, total - kept, 1) / total)


def hold_verdict(
    account: Account, others: Iterable[Account], needed: int, total: int
) -> tuple[Verdict, int]:
    """Whether `account` may hold `needed` blocks more, and how many it may hold at all now.

    Within its reservation always; beyond that what the others neither hold nor have reserved:
    `total - sum of max(held, reserved)`, and no more than it may borrow. Blocks cannot be taken
    back within a deadline, so reserved ones are not lent. `total` 0 is not known: only what the
    tenant's own terms bound then counts, and so it is where nobody has reserved any.
    """
    config = account.config
    if config.max_generations and account.open >= config.max_generations:
        return Verdict.TOO_MANY, 0
    reserved = config.kv_block_s_per_s
    kept = held = 0
    for other in others:
        kept += other.config.kv_block_s_per_s
        held += max(other.held_blocks, other.config.kv_block_s_per_s)
    # Without a reservation there is nothing to keep free: who waits for blocks waits in turn.
    bounded = total > 0 and reserved + kept > 0
    if not bounded and config.borrow_kv_block_s_per_s < 0:
        return Verdict.HOLDS, account.held_blocks + needed
    if bounded:
        ever, now = max(reserved, total - kept), max(reserved, total - held)
        if config.borrow_kv_block_s_per_s >= 0:
            bound = reserved + config.borrow_kv_block_s_per_s
            ever, now = min(ever, bound), min(now, bound)
    else:
        ever = now = reserved + config.borrow_kv_block_s_per_s
    if needed > ever:
        return Verdict.NEVER, ever
    if account.held_blocks + needed > now:
        return Verdict.TOO_MUCH, now
    return Verdict.HOLDS, now
