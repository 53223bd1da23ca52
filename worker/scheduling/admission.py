"""Who is next, and whether one more fits the token targets.

Free functions over sequences; nothing is changed here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from worker.scheduling.cost import CorrectedCost
from worker.scheduling.policies import SchedulingPolicy
from worker.scheduling.records import State
from worker.scheduling.sequences import DecodeSequence


def slack_ns(sequence: DecodeSequence, now_ns: int, token_ns: float) -> float:
    """Time to spare before what is outstanding must start to be computed; inf without target.

    A sequence that has its first token is due for the next one by its token target.
    """
    work = token_ns * max(1, sequence.outstanding - sequence.hint_tokens)
    if sequence.generated:
        due = next_due_ns(sequence, 1.0)
        return due - now_ns - work if due else math.inf
    due = sequence.first_due_ns
    return due - now_ns - work if due else math.inf


def queue_order(
    waiting: Sequence[DecodeSequence],
    policy: SchedulingPolicy,
    *,
    pass_limit: int,
    now_ns: int,
    token_ns: float,
) -> list[DecodeSequence]:
    """Who is admitted first: by slack or by arrival; newcomers before those that gave way to one.

    What was passed over `pass_limit` times comes before all others, in the order of arrival.
    """
    often = [s for s in waiting if s.passed_over >= pass_limit]
    rest = [s for s in waiting if s.passed_over < pass_limit]
    if policy.by_slack:
        rest.sort(key=lambda s: (slack_ns(s, now_ns, token_ns), s.order))
    else:
        rest.sort(key=lambda s: (policy.evict and s.state == State.PREEMPTED, s.order))
    return sorted(often, key=lambda s: s.order) + rest


def next_due_ns(sequence: DecodeSequence, headroom: float) -> float:
    """When its next token is due: so many targets, times `headroom`, after its first token."""
    target = sequence.arrival.token_target_ns
    if not target or sequence.first_token_ns < 0:
        return 0.0
    return sequence.first_token_ns + headroom * target * sequence.generated


def expected_more(sequence: DecodeSequence, ratio: float) -> float:
    """Tokens it is likely to generate yet, when answers take `ratio` of their limits."""
    return max(1.0, ratio * sequence.remaining)


def steady_step_ns(sequences: Iterable[DecodeSequence], cost: CorrectedCost, ratio: float) -> float:
    """What a step takes when all of these decode and as many prompts flow in as answers end.

    rest(n, sum of lengths at the middle of what is to come) + token * sum(prompt / answer).
    """
    count, cached, prompts = 0, 0.0, 0.0
    for sequence in sequences:
        more = expected_more(sequence, ratio)
        count += 1
        cached += len(sequence.tokens) + more / 2
        prompts += (sequence.prompt_tokens - sequence.cached_tokens) / max(
            1.0, ratio * sequence.limit
        )
    return cost.rest_ns(count, int(cached)) + cost.token_ns * prompts


def tightest_target_ns(sequences: Iterable[DecodeSequence]) -> int:
    """The least token target; 0 when nobody has one."""
    targets = [s.arrival.token_target_ns for s in sequences if s.arrival.token_target_ns]
    return min(targets) if targets else 0


def fits_targets(
    newcomer: DecodeSequence,
    residents: Sequence[DecodeSequence],
    cost: CorrectedCost,
    headroom: float,
    ratio: float,
) -> bool:
    """Whether the steady step with one more stays within `headroom` of the tightest target."""
    everybody = [*residents, newcomer]
    target = tightest_target_ns(everybody)
    return not target or steady_step_ns(everybody, cost, ratio) <= headroom * target
