"""Who may hold how many KV blocks: reservations that are kept free for their owners. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from controlplane.policy.tenancy.accounts import Account

# Tokens in a block of the decode workers' arenas.
KV_BLOCK_TOKENS = 16


class Verdict(Enum):
    """Whether a generation may hold its blocks."""

    HOLDS = "holds"
    TOO_MANY = "too-many-generations"
    TOO_MUCH = "too-many-blocks"
    NEVER = "more-than-it-may-ever-hold"


def hold_verdict(
    account: Account, others: Iterable[Account], needed: int, total: int
) -> tuple[Verdict, int]:
    """Whether `account` may hold `needed` blocks more, and how many it may hold at all now.

    Within its reservation always; beyond that what the others neither hold nor have reserved:
    `total - sum of max(held, reserved)`, and no more than it may borrow. Blocks cannot be taken
    back within a deadline, so reserved ones are not lent. `total` 0 is not known: only what the
    tenant's own terms bound then counts.
    """
    config = account.config
    if config.max_generations and account.open >= config.max_generations:
        return Verdict.TOO_MANY, 0
    reserved = config.kv_block_s_per_s
    ever = now = reserved
    bounded = total > 0 or config.borrow_kv_block_s_per_s >= 0
    if not bounded:
        return Verdict.HOLDS, account.held_blocks + needed
    if total > 0:
        kept = held = 0
        for other in others:
            kept += other.config.kv_block_s_per_s
            held += max(other.held_blocks, other.config.kv_block_s_per_s)
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
