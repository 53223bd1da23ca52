"""What goes into the next step: which sequences decode, and how much of which prompt."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from worker.scheduling.admission import NO_RANKS, due_ns
from worker.scheduling.blocks import BLOCK_TOKENS
from worker.scheduling.cost import CorrectedCost
from worker.scheduling.pace import Beat, beat_of
from worker.scheduling.records import State, StepPart
from worker.scheduling.sequences import DecodeSequence


class Share(NamedTuple):
    """So many outstanding tokens of one sequence, computed in the next step."""

    sequence: DecodeSequence
    tokens: int


class PlanLimits(NamedTuple):
    """Most sequences that decode and most prompt tokens in a step; see the settings.

    `turn_ns` is the longest that a step of accounts may take beyond what an empty one does, as far
    as it is prompts that make it longer.
    """

    width: int
    chunk_tokens: int
    headroom: float
    pass_limit: int
    turn_ns: int


def take_turns(
    residents: Sequence[DecodeSequence], limits: PlanLimits, prompts_turn: bool
) -> list[Share]:
    """A chunk of a prompt, or one token of those that waited longest, in turns.

    The first prompt is read first, unless another went without a part for `pass_limit` steps: what
    is preempted comes back as a prompt and would be the first one for ever.
    """
    prefilling = [s for s in residents if s.state == State.PREFILLING]
    decoding = [s for s in residents if s.state == State.DECODING]
    if prefilling and (prompts_turn or not decoding):
        first = min(prefilling, key=lambda s: s.order)
        starved = max(prefilling, key=lambda s: (s.idle_steps, -s.order))
        if starved.idle_steps >= limits.pass_limit:
            first = starved
        return [Share(first, min(first.outstanding, limits.chunk_tokens))]
    return [Share(s, 1) for s in longest_idle(decoding, limits.width)]


def mix(
    residents: Sequence[DecodeSequence],
    cost: CorrectedCost,
    limits: PlanLimits,
    ratio: float,
    now_ns: int,
    ranks: Mapping[str, float] = NO_RANKS,
    *,
    prompts_due: bool = False,
) -> list[Share]:
    """Everybody who decodes, and as much of the prompts as the tightest of them can bear.

    Prompts of accounts with lower `ranks` come first. `prompts_due` gives them a block's tokens
    whatever the pace: they had none for as many steps as they may.
    """
    decoding = longest_idle([s for s in residents if s.state == State.DECODING], limits.width)
    shares = [Share(s, 1) for s in decoding]
    prefilling = [s for s in residents if s.state == State.PREFILLING]
    if not prefilling:
        return shares
    beat = beat_of(decoding, cost, limits.headroom, ratio, now_ns)
    budget = chunk_budget(beat, cost.token_ns, limits.chunk_tokens)
    if prefilling[0].account_id:
        # Whoever comes meanwhile waits for the step's end, whosever parts are in it.
        left_ns = limits.turn_ns - (beat.step_ns - cost.rest_ns(0, 0))
        budget = min(budget, max(BLOCK_TOKENS, int(left_ns / cost.token_ns)))
    if prompts_due:
        budget = max(budget, BLOCK_TOKENS)
    prefilling.sort(key=lambda s: (ranks[s.account_id] if ranks else 0.0, due_ns(s), s.order))
    end_ns = now_ns + beat.step_ns
    anchor = max(prefilling, key=lambda s: (s.idle_steps, -s.order))
    if anchor.idle_steps >= limits.pass_limit:
        prefilling.remove(anchor)
        budget = max(1, budget)
        if ranks and ranks[anchor.account_id]:
            # It must get on, but not before those whose turn it is.
            shares.append(Share(anchor, 1))
            budget -= 1
            end_ns += cost.token_ns
        else:
            prefilling.insert(0, anchor)
    return shares + fill(prefilling, budget, end_ns, cost.token_ns, limits.headroom)


def fill(
    prompts: Sequence[DecodeSequence],
    budget: int,
    end_ns: float,
    token_ns: float,
    headroom: float,
) -> list[Share]:
    """As much of these prompts, in their order, as `budget` tokens allow.

    A prompt that ends in this step has its first token when the step ends: nothing is computed
    beside it that would put that off for longer than `headroom` times its target. `end_ns` is when
    a step without prompts would end.
    """
    shares = []
    due_ns = math.inf
    for sequence in prompts:
        count = min(budget, sequence.outstanding)
        if due_ns < math.inf:
            count = min(count, int((due_ns - end_ns) / token_ns))
        if count < 1:
            break
        shares.append(Share(sequence, count))
        budget -= count
        end_ns += token_ns * count
        first_due_ns = sequence.first_due_ns
        ends = count == sequence.outstanding and not sequence.generated
        # Who is late whatever happens holds nobody up.
        if ends and first_due_ns >= end_ns:
            spare_ns = (1.0 - headroom) * sequence.arrival.first_token_target_ns
            due_ns = min(due_ns, max(end_ns, first_due_ns - spare_ns))
    return shares


def longest_idle(sequences: Sequence[DecodeSequence], width: int) -> list[DecodeSequence]:
    """Round robin: those that went without a part for the most steps, the oldest first."""
    return sorted(sequences, key=lambda s: (-s.idle_steps, s.order))[:width]


def chunk_budget(beat: Beat, token_ns: float, chunk_tokens: int) -> int:
    """Prompt tokens for which the next token of no sequence that decodes becomes late.

    (least spare time - step without prompts) / time of a prompt token.
    """
    if not beat.paces:
        return chunk_tokens
    return max(0, min(chunk_tokens, int((beat.spare_ns - beat.step_ns) / token_ns)))


def part_of(share: Share) -> StepPart:
    """The share as the engine is told it; its blocks must be there."""
    sequence, count = share.sequence, share.tokens
    past = sequence.computed
    return StepPart(
        sequence_id=sequence.sequence_id,
        tokens=tuple(sequence.tokens[past : past + count]),
        past=past,
        blocks=tuple(sequence.blocks),
        wants_logits=count == sequence.outstanding,
    )
