"""Simulated worker processes: one run at a time, others wait in order."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from controlplane.policy.hands import Flight


@dataclass(slots=True, eq=False)
class Job:
    """A flight at its worker: when it came there, when it started, what it would take in full."""

    flight: Flight
    received_ns: int
    started_ns: int = -1
    full_ns: int = 0


@dataclass(slots=True, eq=False)
class SimWorker:
    """One worker process. `index` is its place in the world, `number` its membership.

    A replacement has the index of the worker that it replaces and a new number.
    """

    index: int
    number: int
    alive: bool = True
    waiting: deque[Job] = field(default_factory=deque)
    running: Job | None = None
    busy_ns: int = 0
    runs: int = 0

    def worked_ns(self, now_ns: int) -> int:
        """Time of its runs until now, with what has run of the present one."""
        running = 0 if self.running is None else now_ns - self.running.started_ns
        return self.busy_ns + running
