"""Outcomes of batches on their way back to the event loop, all that are ready in one wake-up."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeAlias

from worker.jobs import Job, Place
from worker.records import BatchOutcome

Wake: TypeAlias = Callable[[Callable[[], None]], object]


def by_the_submitter(deliver: Callable[[], None]) -> None:
    """Wakes nobody for an outcome: who submitted the batch delivers it."""


class Outbox:
    """Owns what has ended and was not delivered, and who waits for the end of all work.

    `lock` guards it together with the state of the loop it belongs to; every method but
    `deliver` is called with the lock held. `wake` schedules a callback on the event loop from
    any thread. `busy` is asked, under the lock, whether items wait or run.
    """

    def __init__(self, lock: threading.Lock, *, wake: Wake, busy: Callable[[], bool]) -> None:
        self._lock = lock
        self._wake = wake
        self._busy = busy
        self._finished: list[tuple[Job, BatchOutcome]] = []
        self._signalled = False
        # Called on the event loop when nothing is queued, running or undelivered.
        self._idle_callbacks: list[Callable[[], None]] = []

    def put(self, job: Job, outcome: BatchOutcome, wake: Wake | None = None) -> None:
        """Ends a job; its sink gets the outcome on the event loop, woken by `wake` if given."""
        job.place = Place.DONE
        job.token = None
        self._finished.append((job, outcome))
        self._signal(wake)

    def when_idle(self, callback: Callable[[], None]) -> None:
        """Calls back once, on the event loop, when every accepted item has its outcome."""
        self._idle_callbacks.append(callback)
        self._signal()

    def deliver(self) -> None:
        """Hands outcomes to their sinks; runs on the event loop, without the lock."""
        with self._lock:
            finished, self._finished = self._finished, []
            self._signalled = False
        for job, outcome in finished:
            job.sink(outcome)
        if self._idle_callbacks:
            self._tell_idle()

    def _signal(self, wake: Wake | None = None) -> None:
        if not self._signalled:
            (wake or self._wake)(self.deliver)
            self._signalled = True

    def _tell_idle(self) -> None:
        with self._lock:
            if self._busy() or self._finished:
                return
            callbacks, self._idle_callbacks = self._idle_callbacks, []
        for callback in callbacks:
            callback()
