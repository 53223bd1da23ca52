"""Who gives way when blocks run out."""

from __future__ import annotations

from collections.abc import Sequence

from worker.scheduling.cost import CorrectedCost
from worker.scheduling.sequences import DecodeSequence


def answer_slack_ns(
    sequence: DecodeSequence, cost: CorrectedCost, now_ns: int, ratio: float = 1.0
) -> float:
    """Time to spare before its whole answer is late, alone in its steps; inf without targets.

    due(first) + target * limit - now - steps to come - outstanding prompt.
    """
    arrival = sequence.arrival
    if not arrival.token_target_ns or not arrival.first_token_target_ns:
        return float("inf")
    more = max(1, int(ratio * sequence.remaining))
    middle = len(sequence.tokens) + more // 2
    work = more * cost.rest_ns(1, middle) + cost.token_ns * sequence.outstanding
    due = sequence.first_due_ns + arrival.token_target_ns * sequence.limit
    return due - now_ns - work


def recompute_ns(sequence: DecodeSequence, cost: CorrectedCost) -> float:
    """Price of computing again what it holds."""
    return cost.token_ns * sequence.computed


def eligible_victims(
    sequences: Sequence[DecodeSequence], cost: CorrectedCost, now_ns: int
) -> list[DecodeSequence]:
    """Whose slack outlives a recomputation, or who is late anyway; most slack first."""
    ranked = []
    for sequence in sequences:
        slack = answer_slack_ns(sequence, cost, now_ns)
        if slack <= 0.0 or slack > recompute_ns(sequence, cost):
            ranked.append((-slack, -sequence.order, sequence))
    return [entry[2] for entry in sorted(ranked, key=lambda e: (e[0], e[1]))]


def choose_victim(
    sequences: Sequence[DecodeSequence], cost: CorrectedCost, now_ns: int, ratio: float
) -> DecodeSequence | None:
    """Who loses least: most slack left after its recomputation; of equals the latest comer.

    None when there is nobody to choose from.
    """
    if not sequences:
        return None
    return max(
        sequences,
        key=lambda s: (
            answer_slack_ns(s, cost, now_ns, ratio) - recompute_ns(s, cost),
            s.order,
        ),
    )


def victims_for(
    blocks: int,
    available: int,
    residents: Sequence[DecodeSequence],
    cost: CorrectedCost,
    now_ns: int,
) -> list[DecodeSequence]:
    """Who must give way so that `blocks` are there beside those `available`.

    Nobody when even all of the eligible would not do.
    """
    victims = []
    for victim in eligible_victims(residents, cost, now_ns):
        if available >= blocks:
            break
        victims.append(victim)
        available += len(victim.blocks)
    return victims if available >= blocks else []
