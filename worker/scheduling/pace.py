"""How much time prompts can have while everybody who decodes keeps the pace of its target."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from worker.scheduling.admission import expected_more, next_due_ns
from worker.scheduling.cost import CorrectedCost
from worker.scheduling.records import State
from worker.scheduling.sequences import DecodeSequence

# Part of what a sequence can still make up before its end that it may fall behind by.
_BORROW = 0.25


class Pace(NamedTuple):
    """One sequence that decodes: it bears `spare_ns` without a token, then needs a token every
    `target_ns`, for `more` tokens.
    """

    spare_ns: float
    target_ns: float
    more: float


class Beat(NamedTuple):
    """Those who decode as prompts see them: a step without prompts takes `step_ns`."""

    step_ns: float
    paces: tuple[Pace, ...]

    @property
    def spare_ns(self) -> float:
        """The longest next step that nobody's target forbids; inf without targets."""
        return min([pace.spare_ns for pace in self.paces], default=math.inf)

    def prompt_time_ns(self, window_ns: float, joining_ns: float) -> float:
        """Time that prompts can have within a window from now.

        The window less the steps that the tightest sequence needs in it,
        max over sequences of min(more, (window - spare) / target), each of them longer by
        `joining_ns` for those who come to decode meanwhile.
        """
        steps = 0.0
        for pace in self.paces:
            steps = max(steps, min(pace.more, (window_ns - pace.spare_ns) / pace.target_ns))
        return window_ns - (self.step_ns + joining_ns) * steps


def beat_of(
    residents: Iterable[DecodeSequence],
    cost: CorrectedCost,
    headroom: float,
    ratio: float,
    now_ns: int,
) -> Beat:
    """The beat of those residents that decode.

    A sequence is due `headroom` times its target after each token on average since its first.
    What it can gain on that in its remaining steps it may partly borrow. One that is late
    whatever happens sets no pace.
    """
    decoding = [s for s in residents if s.state == State.DECODING]
    step = cost.rest_ns(len(decoding), sum(s.computed for s in decoding))
    paces = []
    for sequence in decoding:
        due = next_due_ns(sequence, headroom)
        if due and not _lost(sequence, step, now_ns):
            target = headroom * sequence.arrival.token_target_ns
            more = expected_more(sequence, ratio)
            spare = due - now_ns + _BORROW * more * max(0.0, target - step)
            paces.append(Pace(spare, target, more))
    return Beat(step, tuple(paces))


def _lost(sequence: DecodeSequence, step_ns: float, now_ns: int) -> bool:
    """Whether its mean gap misses the target even if nothing but decoding ran to its end."""
    target = sequence.arrival.token_target_ns
    end = now_ns + step_ns * sequence.remaining
    return end > sequence.first_token_ns + target * (sequence.limit - 1)
