"""Whether a newcomer's first token would come in time: the prediction it is refused by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from worker.scheduling.admission import (
    NO_RANKS,
    due_ns,
    expected_more,
    fits_room,
    fits_token_targets,
    slack_ns,
)
from worker.scheduling.cost import CorrectedCost
from worker.scheduling.pace import Beat, beat_of
from worker.scheduling.records import Arrival, State
from worker.scheduling.residency import Residency
from worker.scheduling.sequences import DecodeSequence

# Those before it in the queue join the ones that decode while it waits; some of these leave.
_JOINING = 0.5
# Room to spare, in its own prompt's time: errors grow with what is computed, and where there is
# little room for whatever comes next, a long prompt takes the place of several short ones.
_MARGIN = 0.25
# How long nothing may run after a refusal before costs are doubted, and the part of them at which
# somebody must be in time to be let in to try.
_DOUBT_NS = 1_000_000_000
_DOUBTED_COST = 0.25
# A target that nobody named and nobody can keep becomes this times what the prompt takes alone.
_STRETCH = 2.0


class Doubt:
    """Whether costs by which an idle worker refuses still hold.

    A warm-up beside other work takes steps for far dearer than they are, and what never runs is
    never learnt: a second after the first refusal one newcomer is let in to try.
    """

    def __init__(self) -> None:
        self._refused_ns = -1

    def settle(self) -> None:
        """A step was completed: its cost is known."""
        self._refused_ns = -1

    def lets_in(self, newcomer: DecodeSequence, now_ns: int, token_ns: float) -> bool:
        """Whether one that an idle worker would refuse may try."""
        if self._refused_ns < 0:
            self._refused_ns = now_ns
        doubted = now_ns - self._refused_ns >= _DOUBT_NS
        return doubted and slack_ns(newcomer, now_ns, _DOUBTED_COST * token_ns) > 0.0


def with_kept_target(arrival: Arrival, cost: CorrectedCost) -> Arrival:
    """The arrival with a target for its first token that an idle worker can keep.

    `max(target, 2 (token * prompt tokens + step))` where nobody named the target, by the cost as
    learnt: a machine that has become slower reads prompts late rather than not at all.
    """
    if not (arrival.first_token_target_grows and arrival.first_token_target_ns):
        return arrival
    alone = cost.token_ns * len(arrival.prompt) + cost.rest_ns(0, 0)
    target = max(arrival.first_token_target_ns, int(_STRETCH * alone))
    return replace(arrival, first_token_target_ns=target)


def late_ns(
    newcomer: DecodeSequence,
    homes: Residency,
    cost: CorrectedCost,
    start_ns: int,
    *,
    under_way: Mapping[int, int],
    headroom: float,
    ratio: float,
    ranks: Mapping[str, float] = NO_RANKS,
) -> float:
    """How late the newcomer's first token would be, or one that it would make late.

    Prompts are computed from `start_ns` on, when the step that runs has computed as many tokens
    of each sequence as `under_way` says, in the order of their accounts' `ranks` and in which they
    are due, and in the time that those who decode leave them; a quarter of the newcomer's own time
    is kept to spare. Negative when all are in time; those who are late without the newcomer do
    not count.
    """
    beat = beat_of(homes.residents(), cost, headroom, ratio, start_ns)
    worst = _place_ns(newcomer, homes, cost, headroom, ratio, ranks) + _late(
        newcomer, newcomer.debt, beat, cost, start_ns, 0.0
    )
    tokens, joining = 0, 0.0
    reached = False
    queue = [s for s in homes.residents() if s.state == State.PREFILLING]
    queue += [*homes.waiting.values(), newcomer]
    for sequence in sorted(
        queue, key=lambda s: (ranks[s.account_id] if ranks else 0.0, due_ns(s), s.order)
    ):
        tokens += sequence.debt - under_way.get(sequence.sequence_id, 0)
        if sequence is newcomer:
            reached = True
        joined = joining
        joining += _JOINING * cost.join_ns(len(sequence.tokens))
        if not reached or not sequence.first_due_ns or sequence.generated:
            continue
        if ranks and ranks[sequence.account_id] > ranks[newcomer.account_id]:
            # It is not their turn yet, whoever comes.
            continue
        late = _late(sequence, tokens, beat, cost, start_ns, joined)
        if sequence is newcomer or late <= cost.token_ns * newcomer.debt:
            worst = max(worst, late)
    return worst + _MARGIN * cost.token_ns * newcomer.debt


def drain_ns(homes: Residency, cost: CorrectedCost) -> float:
    """Time that the prompts which wait take by themselves."""
    return cost.token_ns * sum(s.debt for s in homes.waiting.values())


def _late(
    sequence: DecodeSequence,
    tokens: int,
    beat: Beat,
    cost: CorrectedCost,
    start_ns: int,
    joined: float,
) -> float:
    """How late its first token is when it comes after so many tokens of prompts."""
    window = sequence.first_due_ns - start_ns
    return cost.token_ns * tokens + beat.step_ns - beat.prompt_time_ns(window, joined)


def _place_ns(
    newcomer: DecodeSequence,
    homes: Residency,
    cost: CorrectedCost,
    headroom: float,
    ratio: float,
    ranks: Mapping[str, float],
) -> float:
    """Time until those who are left of the residents leave a place beside those who wait.

    Of those who wait only they count whose turn is not after the newcomer's.
    """
    leaving = sorted(homes.residents(), key=lambda s: expected_more(s, ratio))
    waiting = list(homes.waiting.values())
    if ranks:
        upto = ranks[newcomer.account_id]
        waiting = [s for s in waiting if ranks[s.account_id] <= upto]
    gone = 0
    while gone < len(leaving):
        beside = [*leaving[gone:], *waiting]
        if fits_token_targets(newcomer, beside, cost, headroom, ratio) and fits_room(
            newcomer, beside, cost, headroom, ratio
        ):
            break
        gone += 1
    if not gone:
        return 0.0
    last = leaving[gone - 1]
    step = cost.rest_ns(len(leaving), sum(s.computed for s in leaving))
    return step * expected_more(last, ratio)
