"""How much time to allow for a prediction that may be wrong. All times in ns."""

from __future__ import annotations

import math

# Standard deviations below the prediction at which no chance is left.
LAST_CHANCE_Z = 3.0


def needed_ns(
    predicted_ns: float, sigma: float, z: float, start_ns: float = 0.0, start_spread_ns: float = 0.0
) -> float:
    """Time that covers start and service with z standard deviations to spare.

    `start + p + z sqrt(start_spread² + (sigma p)²)`; for an idle worker that is
    `p (1 + z sigma)`.
    """
    own = sigma * predicted_ns
    spread = math.hypot(start_spread_ns, own) if start_spread_ns else own
    return start_ns + predicted_ns + z * spread


def lucky_ns(predicted_ns: float, sigma: float) -> float:
    """Service with three standard deviations of luck; above the slack no chance is left."""
    return predicted_ns * max(0.0, 1.0 - LAST_CHANCE_Z * sigma)


def completion_ns(
    service_ns: float, sigma: float, z: float, ahead_ns: float, workers: int
) -> float:
    """When a newcomer behind queued work is done, with z standard deviations to spare.

    The wait is `A / c` for work A ahead on c workers. A consists of about `A / p` services
    with standard deviation `sigma p` each, shared by c workers, so the wait's variance is
    `(A / p) (sigma p / c)²`, and
    `completion = A / c + p + z sigma sqrt(p² + A p / c²)`.
    """
    wait = ahead_ns / workers
    return wait + service_ns + z * sigma * math.sqrt(service_ns * (service_ns + wait / workers))
