"""Online correction of predicted service times, and how far predictions may be trusted."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

GAIN = 0.15
SPREAD_FLOOR = 0.065
SPREAD_CAP = 0.3
# 1.25 times the mean absolute deviation estimates a normal standard deviation.
SPREAD_PER_ERROR = 1.25
# One run frozen by the host must not convince the policy that nothing can be on time.
LARGEST_RATIO = 4.0


class Corrections:
    """Factors `m_k` on nominal service times and relative spreads `sigma_k`, per variant.

    After a completion on variant k with ratio r = measured / nominal:
    `m_k += 0.15 (r - m_k)`, and
    `sigma_k = clip(1.25 * EWMA |r - m_k| / m_k, 0.065, 0.3)`.
    The other variants run on the same host and move by half of that step. So that halves
    of many steps cannot add up to a drift, a factor is `m_k = shared * own_k`, and a step
    goes to the two in equal (geometric) parts.
    """

    __slots__ = ("_errors", "_own", "_seen", "_shared", "factors", "sigmas")

    def __init__(self, sigmas: Sequence[float]) -> None:
        """`sigmas` are the relative spreads that the profiles measured."""
        self.factors = [1.0] * len(sigmas)
        self._shared = 1.0
        self._own = [1.0] * len(sigmas)
        self._seen = [False] * len(sigmas)
        self._errors = [_clip(sigma) / SPREAD_PER_ERROR for sigma in sigmas]
        self.sigmas = [_clip(sigma) for sigma in sigmas]

    def observe(self, variant: int, ratio: float) -> None:
        """Take one completion; `ratio` is measured over nominal service time, above 0."""
        relative = ratio / self.factors[variant]
        error = min(max(relative, 1.0 / LARGEST_RATIO), LARGEST_RATIO) - 1.0
        half = math.sqrt(1.0 + GAIN * error)
        self._shared *= half
        self._own[variant] *= half
        self._seen[variant] = True
        shared = self._shared
        self.factors = [shared * own for own in self._own]
        self._errors[variant] += GAIN * (abs(error) - self._errors[variant])
        self.sigmas[variant] = _clip(SPREAD_PER_ERROR * self._errors[variant])

    def carried(
        self, renumbered: Mapping[int, int], sigmas: Sequence[float], rescale: Sequence[float]
    ) -> Corrections:
        """The corrections of a new table; `renumbered` maps its numbers to the old ones.

        `rescale` is old over new nominal service of each variant: what a variant was seen
        to take stays predicted though its profile changed. A variant that has not run is
        believed by its new profile.
        """
        fresh = Corrections(sigmas)
        fresh._shared = self._shared
        for new, old in renumbered.items():
            seen = self._seen[old]
            fresh._own[new] = self._own[old] * (rescale[new] if seen else 1.0)
            fresh._seen[new] = seen
            fresh._errors[new] = self._errors[old]
            fresh.sigmas[new] = self.sigmas[old]
        fresh.factors = [fresh._shared * own for own in fresh._own]
        return fresh


def _clip(sigma: float) -> float:
    return min(SPREAD_CAP, max(SPREAD_FLOOR, sigma))
