"""What waits for the engine thread: batches and calls in their order, and calls beside them."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable

from worker.jobs import Call, Job

# How long background calls let batches pass before one of them runs.
_PATIENCE_NS = 100_000_000


class Waiting:
    """Two queues; guarded by the lock of the loop that owns it."""

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self._now_ns = now_ns
        self._in_turn: OrderedDict[Job | Call, None] = OrderedDict()
        self._background: deque[Call] = deque()

    def __bool__(self) -> bool:
        return bool(self._in_turn or self._background)

    def put(self, entry: Job | Call) -> None:
        """Behind everything that was put before."""
        self._in_turn[entry] = None

    def put_aside(self, call: Call) -> None:
        """For when no batch waits, or once it has let them pass for long enough."""
        self._background.append(call)

    def take(self) -> Job | Call | None:
        """What is to run next; None when nothing waits."""
        if self._background and (
            not self._in_turn or self._now_ns() - self._background[0].since_ns > _PATIENCE_NS
        ):
            return self._background.popleft()
        return self._in_turn.popitem(last=False)[0] if self._in_turn else None

    def remove(self, job: Job) -> None:
        """Takes a batch back that waits."""
        del self._in_turn[job]

    def jobs(self) -> list[Job]:
        """The batches that wait, in their order."""
        return [entry for entry in self._in_turn if isinstance(entry, Job)]

    def clear(self) -> list[Call]:
        """Forgets everything; returns the calls, which somebody waits for."""
        calls = [entry for entry in self._in_turn if isinstance(entry, Call)]
        calls += self._background
        self._in_turn.clear()
        self._background.clear()
        return calls
