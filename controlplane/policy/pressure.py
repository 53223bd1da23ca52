"""How much of the workers the traffic takes at least: the demand that no choice can avoid."""

from __future__ import annotations

import math

# Long enough to average tens of arrivals, short enough to see a burst before it hurts.
TIME_CONSTANT_NS = 300_000_000.0


class Demand:
    """Rate at which work arrives, each request on its fastest eligible variant.

    An exponentially weighted rate, `Σ p_i exp(-(t - t_i) / tau) / tau`: busy workers on
    average if everything took the fastest variant.
    """

    __slots__ = ("_at_ns", "_rate")

    def __init__(self) -> None:
        self._rate = 0.0
        self._at_ns = 0

    def arrive(self, service_ns: float, now_ns: int) -> None:
        """Take one arrival, admitted or not."""
        self._rate = self.workers(now_ns) + service_ns / TIME_CONSTANT_NS
        self._at_ns = now_ns

    def workers(self, now_ns: int) -> float:
        """Workers that the recent arrivals would keep busy."""
        if not self._rate:
            return 0.0
        return self._rate * math.exp((self._at_ns - now_ns) / TIME_CONSTANT_NS)
