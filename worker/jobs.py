"""Entries of the engine loop's queue; all of them are guarded by the loop's lock."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from worker.errors import WorkerError
from worker.records import Batch, BatchOutcome


class Token(Protocol):
    """The means to end one run from another thread."""

    def terminate(self) -> None:
        """Asks the run to end soon; nothing happens when it already has."""


class Place(Enum):
    """Where a job is; it only moves forward."""

    QUEUED = 1
    RUNNING = 2
    DONE = 3


class Job:
    """A batch on its way through the loop, and how each of its items ended so far."""

    __slots__ = ("batch", "endings", "live", "place", "sink", "token")

    def __init__(self, batch: Batch, sink: Callable[[BatchOutcome], None]) -> None:
        self.batch = batch
        self.sink = sink
        self.place = Place.QUEUED
        self.token: Token | None = None
        self.endings: list[WorkerError | None] = [item.fault for item in batch.items]
        self.live = self.endings.count(None)

    def end(self, item_ids: Iterable[int], reason: WorkerError) -> int:
        """Ends the named items that have not ended yet; returns how many those were."""
        wanted = frozenset(item_ids)
        ended = 0
        for index, item in enumerate(self.batch.items):
            if self.endings[index] is None and item.item_id in wanted:
                self.endings[index] = reason
                ended += 1
        self.live -= ended
        return ended

    def end_all(self, reason: WorkerError) -> int:
        """Ends every item that has not ended yet; returns how many those were."""
        ended = self.live
        self.endings = [reason if ending is None else ending for ending in self.endings]
        self.live = 0
        return ended

    def end_late(self, now_ns: int, reason: WorkerError) -> None:
        """Ends the items whose deadline is not after `now_ns`."""
        for index, item in enumerate(self.batch.items):
            if self.endings[index] is None and item.deadline_ns <= now_ns:
                self.endings[index] = reason
                self.live -= 1

    def live_indices(self) -> list[int]:
        """Places in the batch of the items that have not ended."""
        return [index for index, ending in enumerate(self.endings) if ending is None]

    def last_deadline_ns(self) -> int:
        """When the last item that has not ended is due; there must be one."""
        return max(self.batch.items[index].deadline_ns for index in self.live_indices())

    def unrun(self, now_ns: int) -> BatchOutcome:
        """Its outcome when every item ended without a run."""
        endings = tuple(ending for ending in self.endings if ending is not None)
        return BatchOutcome(self.batch, endings, now_ns, now_ns, 0, 0, 0)


@dataclass(slots=True, eq=False)
class Call:
    """Other work for the engine thread: a warm-up run, the end of a session."""

    function: Callable[[], Any]
    future: Future[Any]
    since_ns: int

    def run(self) -> None:
        """Runs the function; its result or error is the future's."""
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            self.future.set_result(self.function())
        except Exception as error:
            self.future.set_exception(error)

    def fail(self, error: WorkerError) -> None:
        """Ends it without running: the future's error, unless nobody wants it any more."""
        if self.future.set_running_or_notify_cancel():
            self.future.set_exception(error)
