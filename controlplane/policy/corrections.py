"""Online correction of predicted service times, and how far predictions may be trusted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

GAIN = 0.15
SHARED_GAIN = GAIN / 2
SPREAD_FLOOR = 0.065
SPREAD_CAP = 0.3
# 1.25 times the mean absolute deviation estimates a normal standard deviation.
SPREAD_PER_ERROR = 1.25
# One run frozen by the host must not convince the policy that nothing can be on time.
LARGEST_RATIO = 4.0


class Corrections:
    """Factors `m_k` on nominal service times and relative spreads `sigma_k`, per variant.

    After a completion on variant k with ratio r = measured / nominal:
    `m_k += 0.15 (r - m_k)`; the other variants move by half that relative step, because
    they run on the same host; `sigma_k = clip(1.25 * EWMA |r - m_k| / m_k, 0.065, 0.3)`.
    """

    __slots__ = ("_errors", "factors", "sigmas")

    def __init__(self, sigmas: Sequence[float]) -> None:
        """`sigmas` are the relative spreads that the profiles measured."""
        self.factors = [1.0] * len(sigmas)
        self._errors = [_clip(sigma) / SPREAD_PER_ERROR for sigma in sigmas]
        self.sigmas = [_clip(sigma) for sigma in sigmas]

    def observe(self, variant: int, ratio: float) -> None:
        """Take one completion; `ratio` is measured over nominal service time, above 0."""
        factor = self.factors[variant]
        relative = min(max(ratio / factor, 1.0 / LARGEST_RATIO), LARGEST_RATIO)
        error = relative - 1.0
        shared = 1.0 + SHARED_GAIN * error
        factors = self.factors
        for other in range(len(factors)):
            factors[other] *= shared
        factors[variant] = factor * (1.0 + GAIN * error)
        self._errors[variant] += GAIN * (abs(error) - self._errors[variant])
        self.sigmas[variant] = _clip(SPREAD_PER_ERROR * self._errors[variant])

    def carried(self, renumbered: Mapping[int, int], sigmas: Sequence[float]) -> Corrections:
        """The corrections of a new table; `renumbered` maps its numbers to the old ones."""
        fresh = Corrections(sigmas)
        for new, old in renumbered.items():
            fresh.factors[new] = self.factors[old]
            fresh._errors[new] = self._errors[old]
            fresh.sigmas[new] = self.sigmas[old]
        return fresh


def _clip(sigma: float) -> float:
    return min(SPREAD_CAP, max(SPREAD_FLOOR, sigma))
