"""The published policy that Orchid is compared with: M/M/c on the offered rate, CPU pressure.

Its choices are kept as they were published, also where they are poor: a mean sojourn time
decides about single requests, everything offered counts as load, and a busy machine counts
as slow.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

from controlplane.policy.admission import Admission, Refusal
from controlplane.policy.arrival import Arrival
from controlplane.policy.queueing import erlang_c
from controlplane.policy.records import Decision
from controlplane.policy.selector import Estimate, Reason, Situation, run

WINDOW_NS = 1_000_000_000
PRESSURE_FROM = 50.0
PRESSURE_PER_PERCENT = 0.02


def pressure(cpu_percent: float) -> float:
    """Share by which services are taken to be longer: `max(0, L - 50) * 0.02`."""
    return max(0.0, cpu_percent - PRESSURE_FROM) * PRESSURE_PER_PERCENT


def estimate_ns(service_ns: float, rate_per_ns: float, unfinished: int, workers: int) -> float:
    """The larger of the mean sojourn in M/M/c and the backlog's time; may be infinite.

    `W = C / (c mu - lambda) + s'`, infinite at or beyond capacity, and
    `Q = ceil(n / c) s' + s'`, for s' = `service_ns` under pressure.
    """
    backlog = math.ceil(unfinished / workers) * service_ns + service_ns
    offered = rate_per_ns * service_ns
    if offered >= workers:
        return math.inf
    waits = erlang_c(workers, offered)
    return max(backlog, waits / (workers / service_ns - rate_per_ns) + service_ns)


class Published:
    """One pool's published policy: variant fixed at arrival, one queue, no second look.

    `accurate_only` leaves only the most accurate variant (`published-accurate`).
    """

    __slots__ = ("_accurate_only", "_arrivals")

    by_deadline = False
    second_look = False

    def __init__(self, *, accurate_only: bool) -> None:
        self._accurate_only = accurate_only
        self._arrivals: deque[int] = deque()

    @property
    def name(self) -> str:
        """The name under which it is selected."""
        return "published-accurate" if self._accurate_only else "published-adaptive"

    def of_pool(self) -> Published:
        """A policy with a window of its own."""
        return Published(accurate_only=self._accurate_only)

    def refresh(self, now_ns: int) -> None:
        """Has nothing to prepare."""

    def admit(self, arrival: Arrival) -> Admission:
        """Take the most accurate variant whose estimate meets the deadline, else refuse."""
        rate = self._rate_per_ns(arrival.now_ns)
        load = arrival.load
        if arrival.slack_ns <= 0:
            return Admission(False, Refusal.EXPIRED, (), 0.0, 0)
        if load.workers < 1:
            return Admission(False, Refusal.NO_WORKER, (), 0.0, 0)
        if load.queued >= arrival.bounds.max_items:
            # The published queue has no bound; memory has.
            return Admission(False, Refusal.QUEUE_FULL, (), 0.0, _retry_ms(WINDOW_NS))
        slower = 1.0 + pressure(arrival.cpu_percent)
        unfinished = load.queued + arrival.in_flight
        eligible = arrival.eligible[:1] if self._accurate_only else arrival.eligible
        least = math.inf
        for number in eligible:
            service = arrival.table.usual_ns(number) * slower
            estimate = estimate_ns(service, rate, unfinished, load.workers)
            if estimate <= arrival.slack_ns:
                return Admission(True, "", (number,), estimate, 0)
            least = min(least, estimate)
        retry = _retry_ms(min(least - arrival.slack_ns, WINDOW_NS))
        return Admission(False, Refusal.BEHIND_WORK, (), least, retry)

    def decide(self, estimates: Sequence[Estimate], situation: Situation) -> Decision:
        """Run the fixed variant, late or not."""
        return run(Reason.FIXED_AT_ARRIVAL, estimates[0], estimates[:1], situation)

    def _rate_per_ns(self, now_ns: int) -> float:
        """Arrivals in the last second, this one included, whatever became of them."""
        arrivals = self._arrivals
        arrivals.append(now_ns)
        while arrivals[0] <= now_ns - WINDOW_NS:
            arrivals.popleft()
        return len(arrivals) / WINDOW_NS


def _retry_ms(wait_ns: float) -> int:
    return max(1, math.ceil(wait_ns / 1e6))
