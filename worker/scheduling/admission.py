"""Who is next, and whether one more fits the token targets.

Free functions over sequences; nothing is changed here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from worker.scheduling.cost import CorrectedCost
from worker.scheduling.policies import SchedulingPolicy
from worker.scheduling.records import State
from worker.scheduling.sequences import DecodeSequence

# Part of the token target that decoding alone may never fill: prompts must get somewhere.
_LEAST_SHARE = 0.2
# So many are admitted whatever their targets, or one tight target would have the machine alone.
_LEAST_WIDTH = 4
# Everybody is of one account.
NO_RANKS: Final[Mapping[str, float]] = {}


def due_ns(sequence: DecodeSequence) -> float:
    """When its next token is due by its targets; inf without one.

    The first token by the first token's target, others by the pace of the token target.
    """
    due = next_due_ns(sequence, 1.0) if sequence.generated else float(sequence.first_due_ns)
    return due or math.inf


def slack_ns(sequence: DecodeSequence, now_ns: int, token_ns: float) -> float:
    """Time to spare before its first token is late with nothing beside it; inf without target."""
    due = sequence.first_due_ns
    return due - now_ns - token_ns * sequence.debt if due else math.inf


def queue_order(
    waiting: Sequence[DecodeSequence],
    policy: SchedulingPolicy,
    *,
    pass_limit: int,
    ranks: Mapping[str, float] = NO_RANKS,
) -> list[DecodeSequence]:
    """Who is admitted first: by due time or arrival; newcomers before those that gave way to one.

    What was passed over `pass_limit` times comes before all others, in the order of arrival. All of
    that holds among accounts of one rank; those whose `ranks` are lower come before them.
    """
    often = [s for s in waiting if s.passed_over >= pass_limit]
    rest = [s for s in waiting if s.passed_over < pass_limit]
    if policy.by_due:
        rest.sort(key=lambda s: (due_ns(s), s.order))
    else:
        rest.sort(key=lambda s: (policy.evict and s.state == State.PREEMPTED, s.order))
    ordered = sorted(often, key=lambda s: s.order) + rest
    if ranks:
        ordered.sort(key=lambda s: ranks[s.account_id])
    return ordered


def next_due_ns(sequence: DecodeSequence, headroom: float) -> float:
    """When its next token is due: so many targets, times `headroom`, after its first token."""
    target = sequence.arrival.token_target_ns
    if not target or sequence.first_token_ns < 0:
        return 0.0
    return sequence.first_token_ns + headroom * target * sequence.generated


def expected_more(sequence: DecodeSequence, ratio: float) -> float:
    """Tokens it is likely to generate yet, when usual answers take `ratio` of their limits."""
    part = min(1.0, ratio * sequence.arrival.work_price)
    return max(1.0, part * sequence.remaining)


def tightest_target_ns(sequences: Iterable[DecodeSequence]) -> int:
    """The least token target; 0 when nobody has one."""
    targets = [s.arrival.token_target_ns for s in sequences if s.arrival.token_target_ns]
    return min(targets) if targets else 0


def fits_room(
    newcomer: DecodeSequence,
    residents: Iterable[DecodeSequence],
    cost: CorrectedCost,
    headroom: float,
    ratio: float,
) -> bool:
    """Whether its account keeps to its part of what steps leave for those who decode.

    What all of its sequences add to a step, at the middle of their answers, <= room * (headroom *
    (1 - least share) * target - a step without them); one of them is always let in.
    """
    room = newcomer.arrival.account_room
    target = newcomer.arrival.token_target_ns
    if room >= 1.0 or not target:
        return True
    own = [s for s in residents if s.account_id == newcomer.account_id]
    if not own:
        return True
    own.append(newcomer)
    adds = sum([cost.join_ns(len(s.tokens) + int(expected_more(s, ratio) / 2)) for s in own])
    return adds <= room * (headroom * (1.0 - _LEAST_SHARE) * target - cost.rest_ns(0, 0))


def fits_token_targets(
    newcomer: DecodeSequence,
    residents: Sequence[DecodeSequence],
    cost: CorrectedCost,
    headroom: float,
    ratio: float,
) -> bool:
    """Whether a step in which all of these decode leaves prompts a share of the target.

    step(B + 1) at the middle of their answers <= headroom * (1 - least share) * target; the
    first four always fit.
    """
    everybody = [*residents, newcomer]
    if len(everybody) <= _LEAST_WIDTH:
        return True
    target = tightest_target_ns(everybody)
    if not target:
        return True
    cached = sum(len(s.tokens) + expected_more(s, ratio) / 2 for s in everybody)
    return cost.rest_ns(len(everybody), int(cached)) <= headroom * (1.0 - _LEAST_SHARE) * target
