"""Which followers share a run with the head: only when it pays and everyone still makes it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from controlplane.policy.margins import needed_ns
from controlplane.policy.profiles import VariantProfile
from controlplane.policy.records import Shape

# So many followers in a row that do not fit end the search.
MISSES = 4

# A member must save at least this share of what it costs to run alone.
PAYING_SHARE = 0.1


class Member(NamedTuple):
    """A request that may share a run: its size, slack, whole deadline and fastest service.

    `fastest_ns` is its corrected prediction on its fastest eligible variant, which is
    what it weighs in the queue. `price` is its cohort's.
    """

    shape: Shape
    slack_ns: int
    deadline_ns: int
    fastest_ns: float
    price: float = 1.0


@dataclass(frozen=True, slots=True)
class Run:
    """Conditions of the run the head has got; times in ns, as in `selector.Situation`.

    `factor` and `sigma` are the variant's online correction, `ahead_ns` the residual of
    all runs plus the corrected queue without the head, `fallback` says that the variant
    is the fastest one, which needs no reserve.
    """

    profile: VariantProfile
    factor: float
    sigma: float
    start_ns: float
    start_spread_ns: float
    ahead_ns: float
    workers: int
    z: float
    reserve: float
    fallback: bool


def pays(profile: VariantProfile, shape: Shape) -> bool:
    """Sharing a run saves its fixed cost: `s0 >= 0.1 * (s0 + s1 tokens + s2 squares)`."""
    return profile.s0_ns >= PAYING_SHARE * profile.predict(shape)


def surcharge_ns(profile: VariantProfile, shape: Shape, price: float) -> float:
    """What a request adds to a shared run beyond its size, at its cohort's price."""
    return 0.0 if price == 1.0 else (price - 1.0) * profile.predict(shape)


def better_late(
    profile: VariantProfile, shape: Shape, *, service_ns: float, trip_ns: float, room: int
) -> bool:
    """Whether a busy worker's next run should be held back until it is free.

    A run shorter than the way to the worker gains more from those who come meanwhile and
    share it than it loses by the worker's idle moment; `room` is how many more could.
    """
    return room > 0 and service_ns < trip_ns and pays(profile, shape)


def fair_share(waiting: int, takers: int) -> int:
    """Most requests one run may take, so that free workers are not left without any.

    `waiting` counts the head and all behind it, `takers` the workers that would take
    work now.
    """
    return max(1, -(-waiting // max(1, takers)))


def grow(head: Member, followers: Iterable[Member], run: Run, limit: int) -> list[int]:
    """Positions of the followers that join the head's run, in order; at most `limit - 1`.

    A follower joins when the profile says that it pays, when every member so far and
    itself are still on time with margin after the longer run, when the run stays within
    the reserve of each (a newcomer may have to wait for all of it), and, unless the
    variant is the fastest, when `W` of the whole run does too. `followers` is read only as
    far as needed.
    """
    if limit < 2 or not pays(run.profile, head.shape):
        return []
    joined: list[int] = []
    shapes: list[Shape] = []
    slack, deadline, ahead = head.slack_ns, head.deadline_ns, run.ahead_ns
    extra = surcharge_ns(run.profile, head.shape, head.price)
    misses = 0
    for place, follower in enumerate(followers):
        if misses == MISSES:
            break
        misses += 1
        if not pays(run.profile, follower.shape):
            continue
        shapes.append(follower.shape)
        dearer = extra + surcharge_ns(run.profile, follower.shape, follower.price)
        service = (run.profile.predict(head.shape, shapes) + dearer) * run.factor
        least_slack = min(slack, follower.slack_ns)
        least_deadline = min(deadline, follower.deadline_ns)
        behind = ahead - follower.fastest_ns
        if _fits(service, least_slack, least_deadline, behind, run):
            joined.append(place)
            misses, extra = 0, dearer
            slack, deadline, ahead = least_slack, least_deadline, behind
            if len(joined) == limit - 1:
                break
        else:
            shapes.pop()
    return joined


def _fits(service_ns: float, slack_ns: int, deadline_ns: int, ahead_ns: float, run: Run) -> bool:
    reserve = run.reserve * deadline_ns
    if service_ns > reserve:
        return False
    if not run.fallback and (max(0.0, ahead_ns) + service_ns) / run.workers > reserve:
        return False
    needed = needed_ns(service_ns, run.sigma, run.z, run.start_ns, run.start_spread_ns)
    return needed <= slack_ns
