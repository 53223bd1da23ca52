"""What tells one scheduling policy from another, and their names.

`slo` is the default; the others are what it is measured against. All are settings of one
scheduler.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

_LIMIT = re.compile(r"limit-([1-9]\d{0,3})(\+shed)?")
_PREEMPT = re.compile(r"preempt-([1-9]\d{0,6})")


@dataclass(frozen=True, slots=True)
class SchedulingPolicy:
    """How sequences are ordered, admitted and mixed.

    - `residents`: most sequences in the arena, 0 for no limit of the policy.
    - `width`: most sequences that decode in one step, 0 for the settings'.
    - `chunk_tokens`: most prompt tokens of a step, 0 for the settings'.
    - `arena_sequences`: blocks for so many sequences are used, 0 for all blocks.
    - `sequence_tokens`: what one of those is taken to have, 0 for the context.
    - `mixed`: prompts and decoding share steps; else a chunk of one prompt and a step of
      decoding take turns.
    - `reserve`: blocks for the whole possible length are taken at admission.
    - `by_due`: earliest due first token first; else first come, first served.
    - `by_targets`: admission, the door and the size of chunks keep the targets.
    - `shed`: what can no longer make its first token's target is ended.
    - `evict`: a newcomer without room may preempt.
    """

    name: str
    residents: int = 0
    width: int = 0
    chunk_tokens: int = 0
    arena_sequences: int = 0
    sequence_tokens: int = 0
    mixed: bool = False
    reserve: bool = True
    by_due: bool = False
    by_targets: bool = False
    shed: bool = False
    evict: bool = False


SLO = SchedulingPolicy("slo", mixed=True, reserve=False, by_due=True, by_targets=True, shed=True)
SERIAL = SchedulingPolicy("serial", residents=1, width=1, chunk_tokens=256)
NEVER_EVICT = SchedulingPolicy("never-evict", width=8, chunk_tokens=256)
PREEMPT = SchedulingPolicy("preempt", width=8, chunk_tokens=256, arena_sequences=4, evict=True)

POLICIES = ("slo", "serial", "never-evict", "preempt", "preempt-N", "limit-N", "limit-N+shed")
"""Names that `policy_named` knows, with a number for N."""

_FIXED = {policy.name: policy for policy in (SLO, SERIAL, NEVER_EVICT, PREEMPT)}


def policy_named(name: str) -> SchedulingPolicy:
    """The policy of this name; ValueError names those there are.

    `limit-N` has at most N sequences in the arena, first come, first served; `limit-N+shed`
    also drops what can no longer reach its first token's target. `preempt-N` is `preempt` on an
    arena for sequences of N tokens instead of the context.
    """
    if name in _FIXED:
        return _FIXED[name]
    if sized := _PREEMPT.fullmatch(name):
        return replace(PREEMPT, name=name, sequence_tokens=int(sized[1]))
    match = _LIMIT.fullmatch(name)
    if match is None:
        raise ValueError(f"no scheduling policy {name!r}; policies: {', '.join(POLICIES)}")
    limit = int(match[1])
    return SchedulingPolicy(
        name, residents=limit, width=limit, chunk_tokens=256, shed=match[2] is not None
    )
