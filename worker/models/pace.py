"""What variants cost on this machine, and which of them are worth it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from worker.models.evaluate import Runs, ragged_feeds

LENGTHS = (32, 128)
ROUNDS = 15
# A variant that saves less than this share of the time is not worth its memory.
LARGEST_RATIO = 0.95
LARGEST_LOSS = 0.01
# A slower variant is routed to when its accuracy is above a faster one's by more than this, by
# default (`controlplane.quality_resolution`).
RESOLUTION = 0.002


@dataclass(frozen=True, slots=True)
class Pace:
    """A candidate's time over its baseline's, and the best time of each for the first length."""

    ratio: float
    candidate_ns: int
    baseline_ns: int


def relative_time(
    candidate: Runs,
    baseline: Runs,
    clock_ns: Callable[[], int],
    lengths: Sequence[int] = LENGTHS,
) -> Pace:
    """Compare times of single rows; the ratio is the geometric mean over ``lengths``.

    The two take turns and each keeps its best time, so that noise hits both alike; a clock of
    this thread's CPU time keeps other processes out of it.
    """
    ratios, times = [], []
    for length in lengths:
        feeds = ragged_feeds([np.arange(5, 5 + length).tolist()])
        best: list[float] = [math.inf, math.inf]
        for _ in range(ROUNDS):
            for index, session in enumerate((candidate, baseline)):
                start = clock_ns()
                session.run(feeds)
                best[index] = min(best[index], clock_ns() - start)
        ratios.append(best[0] / best[1])
        times.append((round(best[0]), round(best[1])))
    return Pace(math.prod(ratios) ** (1 / len(ratios)), *times[0])


def slow(ratio: float) -> str:
    """Return why a variant that takes so much of its twin's time is not served, or nothing."""
    if ratio <= LARGEST_RATIO:
        return ""
    return f"takes {ratio:.2f} of its fp32 twin's time, more than {LARGEST_RATIO}"


def loses(accuracy: float) -> str:
    """Return why a variant that loses so much against its twin is not served, or nothing."""
    if accuracy <= LARGEST_LOSS:
        return ""
    return f"loses {accuracy:.4f} accuracy, more than {LARGEST_LOSS}"


def frontier(points: Mapping[str, tuple[int, float]], resolution: float = RESOLUTION) -> set[str]:
    """Return the variants that no faster one all but equals, of times and accuracies by name."""
    chosen: set[str] = set()
    best = -math.inf
    for name, (_, accuracy) in sorted(points.items(), key=lambda p: (p[1][0], -p[1][1])):
        if accuracy > best + resolution:
            chosen.add(name)
            best = accuracy
    return chosen
