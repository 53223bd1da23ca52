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


class SimWorkers:
    """The workers of one world, those that were lost among them."""

    def __init__(self) -> None:
        self.of_number: dict[int, SimWorker] = {}
        self._present: list[SimWorker] = []
        self._gone: list[SimWorker] = []

    def join(self, index: int) -> SimWorker:
        """Another process in this place, with a membership of its own."""
        worker = SimWorker(index, len(self.of_number) + 1)
        self.of_number[worker.number] = worker
        self._present.append(worker)
        return worker

    def lose(self, index: int, now_ns: int) -> SimWorker | None:
        """The process in this place ends with all that it had; None when there is none."""
        worker = next((w for w in self._present if w.index == index), None)
        if worker is None:
            return None
        worker.alive = False
        worker.busy_ns = worker.worked_ns(now_ns)
        worker.running = None
        worker.waiting.clear()
        self._present.remove(worker)
        self._gone.append(worker)
        return worker

    def all(self) -> list[SimWorker]:
        """Those that are there, then those that were lost."""
        return [*self._present, *self._gone]

    def worked_ns(self, now_ns: int) -> int:
        """Time of all runs until now."""
        return sum(worker.worked_ns(now_ns) for worker in self.all())
