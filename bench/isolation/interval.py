"""How sure the ratio of two p99 is that were played in the same rounds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_RESAMPLES = 1000

Times = Sequence[Sequence[float]]
"""By round, what was measured in it."""


def ratio_interval(
    before: Times, after: Times, generator: np.random.Generator
) -> tuple[float, float] | None:
    """The 95 % interval of p99 after over p99 before, by bootstrap; None for fewer than two rounds.

    Whole rounds are drawn, each with what was measured in it before and after: what came in one
    round waited for the same others, and both asked the same in it (percentile bootstrap over
    clusters; Davison and Hinkley 1997, 3.8). Draws in which either has nothing do not count.
    """
    rounds = len(before)
    if rounds != len(after):
        raise ValueError(f"{rounds} rounds before and {len(after)} after")
    if rounds < 2:
        return None
    one, other = [[np.asarray(times) for times in each] for each in (before, after)]
    ratios = []
    for drawn in generator.integers(0, rounds, (_RESAMPLES, rounds)):
        low, high = [np.concatenate([each[number] for number in drawn]) for each in (one, other)]
        if low.size and high.size:
            ratios.append(float(np.percentile(high, 99) / np.percentile(low, 99)))
    if not ratios:
        return None
    return float(np.percentile(ratios, 2.5)), float(np.percentile(ratios, 97.5))
