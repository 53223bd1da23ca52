"""What has been arriving lately: how often, how long it may take, and how much work it is."""

from __future__ import annotations

import math
from collections.abc import Sequence

from controlplane.policy.arrival import Arrival
from controlplane.policy.cascade import Cascade
from controlplane.policy.selector import Estimate

# Time constants of two rates: one sees a burst early, the other is steady.
_FAST_NS = 150_000_000.0
_STEADY_NS = 1_000_000_000.0
# Means are over all arrivals at first, then exponential over about so many.
_MEMORY = 200
# So many arrivals of another kind in a row make it the usual kind.
_INERTIA = 64


class Traffic:
    """Exponential averages over everything that was offered to one pool.

    `eligible` is the usual set of eligible variants, most accurate first, `cascade` what may be
    taken with it, `estimates` the latest estimates by variant number. Times in ns.
    """

    __slots__ = ("_fast", "_first_ns", "_seen", "_seen_ns", "_steady", "_usual", "cascade",
                 "deadline_ns", "eligible", "estimates", "services_ns")  # fmt: skip

    def __init__(self) -> None:
        self.eligible: tuple[int, ...] = ()
        self.cascade: Cascade | None = None
        self.estimates: dict[int, Estimate] = {}
        self.services_ns: dict[int, float] = {}
        self.deadline_ns = 0.0
        self._usual = 0
        self._fast = self._steady = 0.0
        self._seen = 0
        self._first_ns = self._seen_ns = 0

    def arrive(self, arrival: Arrival) -> None:
        """Take one arrival, admitted or not."""
        if not self._seen:
            self._first_ns = arrival.now_ns
        since = self._seen_ns - arrival.now_ns
        self._fast = self._fast * math.exp(since / _FAST_NS) + 1.0 / _FAST_NS
        self._steady = self._steady * math.exp(since / _STEADY_NS) + 1.0 / _STEADY_NS
        self._seen_ns = arrival.now_ns
        self._seen = min(self._seen + 1, _MEMORY)
        self._vote(arrival.eligible, arrival.cascade)
        self.deadline_ns += (max(arrival.slack_ns, 0) - self.deadline_ns) / self._seen
        self._weigh(arrival.estimates)

    def rate_per_ns(self) -> float:
        """The arrival rate to reckon with: steady, or the recent one less its own doubt."""
        fast = self._fast - math.sqrt(self._fast / (2.0 * _FAST_NS))
        return max(self._steady, fast)

    def best_load(self) -> float:
        """Workers that the most accurate usual variant would keep busy if everybody got it."""
        if not self.eligible:
            return 0.0
        return self.rate_per_ns() * self.services_ns[self.eligible[0]]

    def known(self, now_ns: int) -> bool:
        """Whether arrivals have been watched for as long as their rate is averaged over."""
        return now_ns - self._first_ns >= _STEADY_NS

    def _vote(self, eligible: tuple[int, ...], cascade: Cascade | None) -> None:
        """Keep the set that most arrivals have, by majority vote."""
        if eligible == self.eligible and cascade is self.cascade:
            self._usual = min(self._usual + 1, _INERTIA)
        elif self._usual:
            self._usual -= 1
        else:
            self.eligible, self.cascade = eligible, cascade

    def _weigh(self, estimates: Sequence[Estimate]) -> None:
        services = self.services_ns
        for estimate in estimates:
            number = estimate.variant
            known = services.get(number, estimate.predicted_ns)
            services[number] = known + (estimate.predicted_ns - known) / self._seen
            self.estimates[number] = estimate
