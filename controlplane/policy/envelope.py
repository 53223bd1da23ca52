"""What mixes of choices reach at each mean cost: the upper concave envelope of cost and quality."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence


def envelope(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The upper concave envelope of points (cost, quality), by rising cost and quality."""
    hull: list[tuple[float, float]] = []
    for cost, quality in sorted(points):
        if hull and quality <= hull[-1][1]:
            continue
        if hull and cost == hull[-1][0]:
            hull.pop()
        while len(hull) > 1 and _below(hull[-2], hull[-1], (cost, quality)):
            hull.pop()
        hull.append((cost, quality))
    return hull


def height(hull: Sequence[tuple[float, float]], cost: float) -> float:
    """Quality of an envelope at a cost; its ends hold beyond it."""
    place = bisect_right(hull, (cost, math.inf))
    if place == 0 or place == len(hull):
        return hull[min(place, len(hull) - 1)][1]
    (low, quality), (high, above) = hull[place - 1], hull[place]
    return quality + (cost - low) / (high - low) * (above - quality)


def price_at(hull: Sequence[tuple[float, float]], cost: float) -> float:
    """Quality that a little more cost would bring at a mean cost: 0 at the end of the envelope.

    The slopes of an envelope jump; between the middles of its edges they are taken as linear, so
    that a price made of them moves as the cost does.
    """
    before, slope = hull[0][0], math.inf
    for place in range(1, len(hull)):
        (low, quality), (high, above) = hull[place - 1], hull[place]
        middle, own = (low + high) / 2.0, (above - quality) / (high - low)
        if cost <= middle:
            if not math.isfinite(slope):
                return own
            return slope + (cost - before) / (middle - before) * (own - slope)
        before, slope = middle, own
    last = hull[-1][0]
    if cost >= last or not math.isfinite(slope):
        return 0.0
    return slope * (last - cost) / (last - before)


def _below(
    before: tuple[float, float], middle: tuple[float, float], after: tuple[float, float]
) -> bool:
    """Whether the middle point is on or below the line between its neighbours."""
    rise = (after[1] - before[1]) * (middle[0] - before[0])
    return (middle[1] - before[1]) * (after[0] - before[0]) <= rise
