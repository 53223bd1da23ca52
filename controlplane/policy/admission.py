"""Whether a request may wait at all: exact bounds, and refusal of what cannot be on time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, NamedTuple

from controlplane.policy.margins import completion_ns, lucky_ns


class Refusal:
    """Stable words for why a request was not admitted."""

    QUEUE_FULL: Final = "queue-full"
    WORK_BOUND: Final = "predicted-work-bound"
    BEHIND_WORK: Final = "deadline-behind-work-ahead"
    TOO_SHORT: Final = "deadline-below-service-time"
    EXPIRED: Final = "expired"
    NO_WORKER: Final = "no-worker"
    DEFERRED: Final = "overload-deferred"
    PROTECTING: Final = "overload-protecting"
    TENANT_QUEUE: Final = "tenant-queue-full"
    TENANT_WORK: Final = "tenant-work-bound"
    TENANT_RATE: Final = "tenant-borrows-no-more"


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a queue may hold: requests, exactly, and the ns live workers may need for them."""

    max_items: int
    max_work_ns: int


class Load(NamedTuple):
    """What stands before a newcomer; times in ns.

    `wait_ns` is when a worker will be free for it, after the runs and the queued requests
    that are due earlier; `total_ns` is the corrected work queued, `queued` the waiting
    requests, `workers` the live ones, `idle` those of them that have nothing to do.
    """

    wait_ns: float
    total_ns: float
    queued: int
    workers: int
    idle: int


class Admission(NamedTuple):
    """The answer at the door, with the numbers it rests on.

    `reason` is empty when admitted; `variants` are the numbers that may answer then.
    `completion_ns` is when the request would be done, from now, with its margin, or for a
    deadline that is too short, when it would be done at the very best;
    `retry_after_ms` when trying again makes sense, 0 when waiting does not help.
    """

    admitted: bool
    reason: str
    variants: tuple[int, ...]
    completion_ns: float
    retry_after_ms: int


# Refusals that more workers would have spared.
_FOR_LOAD = frozenset((Refusal.QUEUE_FULL, Refusal.WORK_BOUND, Refusal.BEHIND_WORK))


def refused_for_load(admission: Admission) -> bool:
    """Whether more workers would have spared the refusal; False for who was let in."""
    return admission.reason in _FOR_LOAD


def admit(
    variants: tuple[int, ...],
    *,
    service_ns: float,
    hopeful_ns: float,
    sigma: float,
    slack_ns: int,
    trip_ns: float,
    load: Load,
    bounds: Bounds,
    z: float,
    margin: float = 1.0,
) -> Admission:
    """Decide for one newcomer whose best hope of being on time takes `service_ns`.

    `slack_ns` is what it has left, `trip_ns` the way to a worker and back; `margin` stretches
    the wait that the load foretells (`door.DoorMargin`); `hopeful_ns` is its
    service by profile or correction, whichever is less. An idle worker takes whatever
    still has a chance by the hopeful number: without completions a wrong correction would
    never heal.
    """
    if slack_ns <= 0:
        return Admission(False, Refusal.EXPIRED, (), 0.0, 0)
    if load.workers < 1:
        return Admission(False, Refusal.NO_WORKER, (), 0.0, 0)
    done = trip_ns + completion_ns(service_ns, sigma, z, margin * load.wait_ns, load.workers)
    if load.queued >= bounds.max_items:
        return Admission(False, Refusal.QUEUE_FULL, (), done, _drain_ms(load.total_ns, load))
    over = load.total_ns + service_ns - bounds.max_work_ns * load.workers
    if over > 0.0 and load.queued:
        return Admission(False, Refusal.WORK_BOUND, (), done, _drain_ms(over, load))
    least = lucky_ns(hopeful_ns, sigma, trip_ns)
    if least > slack_ns:
        return Admission(False, Refusal.TOO_SHORT, (), least, 0)
    if done > slack_ns and (load.queued or not load.idle):
        over = (done - slack_ns) * load.workers
        return Admission(False, Refusal.BEHIND_WORK, (), done, _drain_ms(over, load))
    return Admission(True, "", variants, done, 0)


def _drain_ms(work_ns: float, load: Load) -> int:
    """Whole ms, at least 1, until the live workers have done `work_ns`."""
    return max(1, math.ceil(work_ns / load.workers / 1e6))
