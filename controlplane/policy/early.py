"""A comparison policy: exact prediction, but the variant is fixed when the request arrives."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from controlplane.policy.admission import Admission
from controlplane.policy.arrival import Arrival
from controlplane.policy.margins import needed_ns
from controlplane.policy.records import Decision
from controlplane.policy.selector import Estimate, Reason, Situation, fixed


@dataclass(frozen=True, slots=True)
class Early:
    """The most accurate variant whose predicted completion meets the deadline, else refuse.

    The wait is the exact residual work ahead; its doubt and the service's own are added as
    variances and `confidence_z` of their standard deviations are kept free. Which worker
    runs it is open until one frees, which in one first-come-first-served queue is the
    worker that was least loaded at arrival, as far as predictions hold.
    """

    confidence_z: float = 1.645
    name: str = "early"
    by_deadline: bool = False
    second_look: bool = True

    def of_pool(self) -> Early:
        """Keeps nothing between decisions, so one serves every pool."""
        return self

    def refresh(self, now_ns: int) -> None:
        """Has nothing to prepare."""

    def admit(self, arrival: Arrival) -> Admission:
        """Fix the variant, or refuse what no variant is expected to finish."""
        load, bounds = arrival.load, arrival.bounds
        roomy = load.queued < bounds.max_items and load.workers > 0
        if roomy and load.total_ns <= bounds.max_work_ns * load.workers:
            for estimate in arrival.estimates:
                needed = self._needed_ns(estimate, arrival)
                if needed <= arrival.slack_ns:
                    return Admission(True, "", (estimate.variant,), needed, 0)
        place = arrival.fastest()
        # Refuses, unless a worker idles and a wrong correction can only heal by a run.
        return arrival.admit(
            place, (arrival.estimates[place].variant,), self.confidence_z, arrival.margin
        )

    def decide(self, estimates: Sequence[Estimate], situation: Situation) -> Decision:
        """Run the fixed variant unless the request has expired."""
        return fixed(estimates[0], situation, Reason.FIXED_AT_ARRIVAL)

    def _needed_ns(self, estimate: Estimate, arrival: Arrival) -> float:
        """Time until the newcomer is done on this variant, with its margin."""
        service, sigma = estimate.predicted_ns, estimate.sigma
        wait = arrival.margin * arrival.load.wait_ns
        spread = sigma * math.sqrt(wait * service / arrival.load.workers)
        return needed_ns(service, sigma, self.confidence_z, arrival.trip_ns + wait, spread)
