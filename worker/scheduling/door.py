"""Whether a newcomer's first token would come in time: the prediction it is refused by."""

from __future__ import annotations

from collections.abc import Sequence

from worker.scheduling.admission import (
    expected_more,
    slack_ns,
    steady_step_ns,
    tightest_target_ns,
)
from worker.scheduling.cost import CorrectedCost
from worker.scheduling.records import State
from worker.scheduling.residency import Residency
from worker.scheduling.sequences import DecodeSequence

# However busy decoding is, prompts get this part of the time: their targets are as hard.
_LEAST_SHARE = 0.15


def prompt_share(
    residents: Sequence[DecodeSequence], cost: CorrectedCost, headroom: float
) -> float:
    """The part of the time that prompts get beside those that decode: 1 - step / target."""
    decoding = [s for s in residents if s.state == State.DECODING]
    target = tightest_target_ns(decoding)
    if not target:
        return 1.0 if not decoding else 0.5
    step = cost.rest_ns(len(decoding), sum(s.computed for s in decoding))
    return max(_LEAST_SHARE, 1.0 - step / (headroom * target))


def late_ns(
    newcomer: DecodeSequence,
    homes: Residency,
    cost: CorrectedCost,
    now_ns: int,
    *,
    headroom: float,
    ratio: float,
    busy_ns: float,
) -> float:
    """How long after its target a newcomer's first token would come; negative is in time."""
    own = slack_ns(newcomer, now_ns, cost.token_ns)
    ahead = [s for s in homes.waiting.values() if slack_ns(s, now_ns, cost.token_ns) <= own]
    first = first_token_ns(
        newcomer,
        ahead,
        homes.residents(),
        cost,
        headroom=headroom,
        ratio=ratio,
        busy_ns=busy_ns,
    )
    return first - (newcomer.first_due_ns - now_ns)


def drain_ns(homes: Residency, cost: CorrectedCost, headroom: float) -> float:
    """Time until the prompts that wait are computed, at the share of the time they get."""
    debt = sum(s.outstanding - s.hint_tokens for s in homes.waiting.values())
    return cost.token_ns * debt / prompt_share(homes.residents(), cost, headroom)


def first_token_ns(
    newcomer: DecodeSequence,
    ahead: Sequence[DecodeSequence],
    residents: Sequence[DecodeSequence],
    cost: CorrectedCost,
    *,
    headroom: float,
    ratio: float,
    busy_ns: float,
) -> float:
    """Time until a newcomer's first token, behind the prompts `ahead` of it in the queue.

    The prompts before it, its own, at the share of the time that prompts get, after the
    `busy_ns` that the running step still takes; and not before enough residents have ended
    for it to fit the token targets.
    """
    share = prompt_share(residents, cost, headroom)
    own = newcomer.outstanding - newcomer.hint_tokens
    debt = own + sum(s.outstanding for s in residents if s.state == State.PREFILLING)
    debt += sum(max(1, s.outstanding - s.hint_tokens) for s in ahead)
    by_work = cost.token_ns * debt / share
    wait = _place_ns([*ahead, newcomer], residents, cost, headroom, ratio)
    return busy_ns + max(by_work, wait + cost.token_ns * own / share)


def _place_ns(
    queue: Sequence[DecodeSequence],
    residents: Sequence[DecodeSequence],
    cost: CorrectedCost,
    headroom: float,
    ratio: float,
) -> float:
    """Time until the last of the queue has a place beside the residents that are left then."""
    target = tightest_target_ns([*residents, *queue])
    if not target or not residents:
        return 0.0
    leaving = sorted(residents, key=lambda s: expected_more(s, ratio))
    present = [*residents, *queue]
    gone = 0
    while gone < len(leaving) and steady_step_ns(present, cost, ratio) > headroom * target:
        present.remove(leaving[gone])
        gone += 1
    if not gone:
        return 0.0
    return expected_more(leaving[gone - 1], ratio) * headroom * target
