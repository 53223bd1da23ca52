"""Items that two variants answer more or less alike, and the evidence that they make."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from bench.sim.answers import Answers
from bench.sim.model import SimModel, two_variants
from bench.sim.sweep import SimSweep
from controlplane.policy.cascade import Calibration, Escalation, Evidence

BEST, FAST = "accurate", "cheap"
_STEPS = 10


def answers(
    count: int = 4000,
    seed: int = 1,
    skill: Mapping[str, float] | None = None,
    trust: Mapping[str, float] | None = None,
) -> Answers:
    """Two classes; a variant's margin for the right one is normal with its skill as mean.

    Half of every margin's variance is the item's own, so what one finds hard the other does too.
    The logits are calibrated for the skill in `trust` (by default its own): more trust than skill
    is overconfidence.
    """
    generator = np.random.default_rng(seed)
    skill = skill or {BEST: 1.41, FAST: 0.95}
    trust = trust or skill
    labels = generator.integers(0, 2, count)
    common = generator.normal(0.0, np.sqrt(0.5), count)
    logits: dict[str, NDArray[np.float64]] = {}
    for name, mean in skill.items():
        margin = mean + common + generator.normal(0.0, np.sqrt(0.5), count)
        towards_one = np.where(labels == 1, margin, -margin) * trust[name]
        logits[name] = np.stack([-towards_one, towards_one], axis=1)
    tokens = generator.integers(8, 48, count)
    return Answers(tokens.astype(np.int64), labels.astype(np.int64), logits)


def evidence_of(found: Answers, first: str = FAST, to: str = BEST) -> Evidence:
    """Steps of equally many items, joined until the gains fall."""
    z = found.logits[first]
    confidence = 1.0 / (1.0 + np.exp(-np.abs(z[:, 1] - z[:, 0])))
    right = found.right([first, to]).astype(np.float64)
    blocks: list[tuple[float, int, float, float]] = []
    for part in np.array_split(np.argsort(confidence, kind="stable"), _STEPS):
        start = float(confidence[part[0]]) if blocks else 0.0
        block = (start, len(part), float(right[part, 0].sum()), float(right[part, 1].sum()))
        while blocks and _gain(blocks[-1]) <= _gain(block):
            begin, count, ours, theirs = blocks.pop()
            block = (begin, count + block[1], ours + block[2], theirs + block[3])
        blocks.append(block)
    assert all(one[0] < other[0] for one, other in pairwise(blocks))
    steps = Escalation(
        first=first,
        to=to,
        confidences=tuple(block[0] for block in blocks),
        gains=tuple(_gain(block) for block in blocks),
        counts=tuple(block[1] for block in blocks),
        shares_right=tuple(block[2] / block[1] for block in blocks),
    )
    return Evidence("items", {first: Calibration(), to: Calibration()}, (steps,))


def _gain(block: tuple[float, int, float, float]) -> float:
    return (block[3] - block[2]) / block[1]


def cascade_model() -> SimModel:
    """The best variant takes 30 ms and is right in 0.92, the fast one 4 ms and 0.83.

    The evidence is of other items than those of `answers`' own seed.
    """
    plain = two_variants(30.0, 4.0, (0.921, 0.829))
    evidence = evidence_of(answers(seed=9))
    return SimModel("cascade", plain.candidates, evidence={"": evidence})


def sweep(*policies: str, loads: tuple[float, ...], seconds: float = 8.0) -> SimSweep:
    """Policies on the same traffic and items; two seeds."""
    return SimSweep(
        model=cascade_model(),
        policies=policies,
        loads=loads,
        seconds=seconds,
        seeds=(1, 2),
        answers=answers(),
    )
