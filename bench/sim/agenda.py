"""What is to happen in a simulated world, and when: its clock."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from functools import partial

Event = Callable[[int], object]


class Agenda:
    """Events at their times, in ns; those of one moment in the order in which they were foreseen.

    One of them may be the alarm, which is set again when there is something earlier to wake for.
    """

    def __init__(self) -> None:
        self._events: list[tuple[int, int, Event]] = []
        self._foreseen = 0
        # The event that the alarm is, 0 for none, and what it was set for.
        self._alarm = 0
        self._alarm_ns = 0

    def __len__(self) -> int:
        return len(self._events)

    @property
    def next_ns(self) -> int:
        """When the next event is; there must be one."""
        return self._events[0][0]

    def at(self, time_ns: int, happen: Event) -> None:
        """Foresee an event, which is told its time."""
        self._foreseen += 1
        heapq.heappush(self._events, (time_ns, self._foreseen, happen))

    def wake(self, due_ns: int, at_ns: int, happen: Event) -> None:
        """Set the alarm, at `at_ns`, for what is due; not when it is set for something as early."""
        if self._alarm and due_ns >= self._alarm_ns:
            return
        # The number tells the alarm from those that it replaced.
        self._alarm_ns, self._alarm = due_ns, self._foreseen + 1
        self.at(at_ns, partial(self._ring, self._alarm, happen))

    def step(self) -> int:
        """Have the next event happen; returns its time. There must be one."""
        now_ns, _, happen = heapq.heappop(self._events)
        happen(now_ns)
        return now_ns

    def _ring(self, alarm: int, happen: Event, now_ns: int) -> None:
        if alarm == self._alarm:
            self._alarm = 0
            happen(now_ns)
