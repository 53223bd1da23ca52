"""How much time to allow for a prediction that may be wrong. All times in ns."""

from __future__ import annotations

import math

# Standard deviations below the prediction at which no chance is left.
LAST_CHANCE_Z = 3.0
# A way to a worker and back is taken for this until it is measured, and at most for this
# where a measurement gone wrong must not silence a pool.
USUAL_TRIP_NS = 1_000_000.0


def needed_ns(
    predicted_ns: float, sigma: float, z: float, start_ns: float = 0.0, start_spread_ns: float = 0.0
) -> float:
    """Time that covers start and service with z standard deviations to spare.

    `start + p + z sqrt(start_spread² + (sigma p)²)`; for an idle worker that is
    `p (1 + z sigma)`.
    """
    return start_ns + predicted_ns + failure_ns(predicted_ns, sigma, z, start_spread_ns)


def failure_ns(predicted_ns: float, sigma: float, z: float, start_spread_ns: float = 0.0) -> float:
    """What is kept free in case a prediction fails: `z sqrt(start_spread² + (sigma p)²)`."""
    own = sigma * predicted_ns
    return z * (math.hypot(start_spread_ns, own) if start_spread_ns else own)


def slack_ns(
    deadline_ns: float, elapsed_ns: float, upstream_ns: float, execution_ns: float, fail_ns: float
) -> float:
    """`S = D - E - R_upstream - R_exec - R_fail`: what a deadline leaves to spare.

    Of the deadline go what has elapsed, and the reserves for ways and waits before and after
    the execution, for the execution itself, and for a prediction that fails.
    """
    return deadline_ns - elapsed_ns - upstream_ns - execution_ns - fail_ns


def lucky_ns(predicted_ns: float, sigma: float, trip_ns: float) -> float:
    """Trip and service with three standard deviations of luck.

    Above the slack no chance is left.
    """
    return min(trip_ns, USUAL_TRIP_NS) + predicted_ns * max(0.0, 1.0 - LAST_CHANCE_Z * sigma)


def completion_ns(service_ns: float, sigma: float, z: float, wait_ns: float, workers: int) -> float:
    """When a newcomer is done after a wait, with z standard deviations to spare for each.

    A wait w on c workers is made of about `c w / p` services with standard deviation
    `sigma p` each, shared by c workers, so its variance is `(c w / p) (sigma p / c)²`, and
    `completion = w + z sigma sqrt(w p / c) + p (1 + z sigma)`. The last term is what the
    newcomer is held to when its turn comes.
    """
    wait = wait_ns + z * sigma * math.sqrt(wait_ns * service_ns / workers)
    return wait + service_ns * (1.0 + z * sigma)
