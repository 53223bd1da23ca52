"""Virtual times of those who share the workers, and whose turn it is. Pure; times in ns."""

from __future__ import annotations

import math
from collections.abc import Sequence


class Clock:
    """One tenant among the tenants, or one class among a tenant's classes.

    `time` is the work it was served over its `share`, in cores: two that wait all the time and
    are served in proportion to their shares keep the same time. `waiting` counts its requests.
    """

    __slots__ = ("share", "time", "waiting")

    def __init__(self, share: float, time: float = 0.0) -> None:
        self.share = share
        self.time = time
        self.waiting = 0

    def serve(self, work_ns: float) -> None:
        """Charge work; negative when an estimate turned out too high."""
        self.time += work_ns / self.share


class Peers:
    """Clocks that compete. `floor` is the least time of those who waited, and never falls.

    Who begins to wait starts at the floor at least: a rest earns no credit, and what others
    used meanwhile need not be given back.
    """

    __slots__ = ("_waiting", "floor")

    def __init__(self, floor: float = 0.0) -> None:
        self.floor = floor
        self._waiting: dict[Clock, None] = {}

    def enter(self, clock: Clock) -> None:
        """One more of its requests waits."""
        if not clock.waiting:
            self._raise_floor()
            clock.time = max(clock.time, self.floor)
            self._waiting[clock] = None
        clock.waiting += 1

    def leave(self, clock: Clock) -> None:
        """One of its waiting requests is gone; what it is served for it is charged afterwards."""
        if clock.waiting == 1:
            self._raise_floor()
            del self._waiting[clock]
        clock.waiting -= 1

    def start_of(self, clock: Clock) -> float:
        """The time at which it waits, or would if it began to now."""
        if clock.waiting:
            return clock.time
        lowest = min([each.time for each in self._waiting], default=self.floor)
        return max(clock.time, lowest, self.floor)

    def _raise_floor(self) -> None:
        if self._waiting:
            self.floor = max(self.floor, min([clock.time for clock in self._waiting]))


class Turn:
    """The next request of one class of one tenant; `key` and `number` order it among others."""

    __slots__ = ("clock", "key", "number", "tenant")

    def __init__(self, tenant: Clock, clock: Clock) -> None:
        self.tenant = tenant
        self.clock = clock
        self.key = 0
        self.number = 0


def pick(turns: Sequence[Turn], bound_ns: float) -> Turn | None:
    """Whose turn it is: the least key among those who are not too far ahead.

    Only tenants within `bound_ns` of the least tenant's time count, and of their classes those
    within as much of the tenant's least. So who is served was at most the bound ahead of
    anybody who waits; see docs/tenants.md. One pass over those who wait.
    """
    limit = bound_ns + min([turn.tenant.time for turn in turns], default=math.inf)
    least: dict[Clock, float] = {}
    for turn in turns:
        if turn.tenant.time <= limit:
            known = least.get(turn.tenant, math.inf)
            least[turn.tenant] = min(known, turn.clock.time)
    best: Turn | None = None
    for turn in turns:
        lowest = least.get(turn.tenant)
        if lowest is None or turn.clock.time > lowest + bound_ns:
            continue
        if best is None or (turn.key, turn.number) < (best.key, best.number):
            best = turn
    return best
