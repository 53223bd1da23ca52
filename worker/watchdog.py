"""Answers batches at their deadline, whether they wait or run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

# Below this a timer costs more than the lateness it saves.
_SHORTEST_S = 0.001
# Event loops bound their timers; a timer that fires early is set again.
_LONGEST_S = 3600.0


class Timer(Protocol):
    """A scheduled callback, as `asyncio.TimerHandle`."""

    def cancel(self) -> None:
        """Takes it back."""


class Expirer(Protocol):
    """What the watchdog looks at, as `EngineLoop`."""

    def expire(self, now_ns: int) -> int | None:
        """Ends what is due; returns when the next will be."""


class Watchdog:
    """One timer for all batches of an engine loop; lives on the event loop.

    The timer stands at the earliest deadline it was told of. When it fires the engine loop
    ends what is due and names the next time, so a batch costs one comparison.
    """

    def __init__(
        self,
        engine: Expirer,
        now_ns: Callable[[], int],
        call_later: Callable[[float, Callable[[], None]], Timer],
    ) -> None:
        self._engine = engine
        self._now_ns = now_ns
        self._call_later = call_later
        self._timer: Timer | None = None
        self._due_ns = 0

    def watch(self, deadline_ns: int) -> None:
        """Makes sure that the engine loop is looked at when `deadline_ns` comes."""
        if self._timer is not None:
            if self._due_ns <= deadline_ns:
                return
            self._timer.cancel()
        self._due_ns = deadline_ns
        delay = (deadline_ns - self._now_ns()) / 1e9
        self._timer = self._call_later(min(max(delay, _SHORTEST_S), _LONGEST_S), self._fire)

    def stop(self) -> None:
        """Cancels the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fire(self) -> None:
        self._timer = None
        following = self._engine.expire(self._now_ns())
        if following is not None:
            self.watch(following)
