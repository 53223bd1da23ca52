"""How late the event loop is: what every call waits before anybody looks at it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

EVERY_NS = 10_000_000
# About one look: less and a level would come and go with the noise of single looks.
_MEMORY_NS = 10_000_000.0


def smoothed(lag_ns: float, late_ns: float, since_ns: float) -> float:
    """The lag after a look that came `late_ns` too late, `since_ns` after the one before.

    `lag += (1 - exp(-since / 10 ms)) (late - lag)`.
    """
    return lag_ns + -math.expm1(-since_ns / _MEMORY_NS) * (late_ns - lag_ns)


class LoopLag:
    """Looks at the clock a hundred times a second.

    Each time it tells `tell` the smoothed lag, and when on the clock it looks again (0: it does
    not); both in ns.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        now_ns: Callable[[], int],
        tell: Callable[[float, int], None],
    ) -> None:
        self._loop = loop
        self._now_ns = now_ns
        self._tell = tell
        self._timer: asyncio.TimerHandle | None = None
        self._looked_ns = 0
        self.lag_ns = 0.0

    def start(self) -> None:
        """Look from now on."""
        self._looked_ns = self._now_ns()
        self._timer = self._loop.call_later(EVERY_NS / 1e9, self._look)

    def stop(self) -> None:
        """Look no more: nothing is overdue then."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._tell(0.0, 0)

    def _look(self) -> None:
        now = self._now_ns()
        since = now - self._looked_ns
        self.lag_ns = smoothed(self.lag_ns, max(0, since - EVERY_NS), since)
        self._looked_ns = now
        self._tell(self.lag_ns, now + EVERY_NS)
        self._timer = self._loop.call_later(EVERY_NS / 1e9, self._look)
