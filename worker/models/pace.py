"""Whether an 8-bit variant pays: its speed against its fp32 twin, on this machine."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from worker.models.evaluate import Runs, ragged_feeds
from worker.models.manifest import QualityEvidence

LENGTHS = (32, 128)
ROUNDS = 15
# A variant that saves less than this share of the time is not worth its memory.
LARGEST_RATIO = 0.95
LARGEST_LOSS = 0.01


def relative_time(
    candidate: Runs,
    baseline: Runs,
    clock_ns: Callable[[], int],
    lengths: Sequence[int] = LENGTHS,
) -> float:
    """Return the candidate's time over the baseline's: geometric mean over single-row lengths.

    The two take turns and each keeps its best time, so that noise hits both alike; a clock of
    this thread's CPU time keeps other processes out of it.
    """
    ratios = []
    for length in lengths:
        feeds = ragged_feeds([np.arange(5, 5 + length).tolist()])
        best = [math.inf, math.inf]
        for _ in range(ROUNDS):
            for index, session in enumerate((candidate, baseline)):
                start = clock_ns()
                session.run(feeds)
                best[index] = min(best[index], clock_ns() - start)
        ratios.append(best[0] / best[1])
    return math.prod(ratios) ** (1 / len(ratios))


def refusal(ratio: float, candidate: QualityEvidence, baseline: QualityEvidence) -> str:
    """Return why a cheaper variant is not worth serving, or an empty string when it is."""
    if ratio > LARGEST_RATIO:
        return f"takes {ratio:.2f} of its fp32 twin's time, more than {LARGEST_RATIO}"
    loss = baseline.value - candidate.value
    if loss > LARGEST_LOSS:
        return f"loses {loss:.4f} {candidate.metric}, more than {LARGEST_LOSS}"
    return ""
