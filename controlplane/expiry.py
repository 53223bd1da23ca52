"""One timer for all deadlines: every request is answered when its time is up, not later."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from controlplane.policy.edf import EdfQueue

_UNBOUNDED = 1 << 62
# A timer that is armed for longer is checked on the way; loops dislike huge delays.
_LONGEST_S = 3600.0


class Deadlines:
    """Calls `expire(id)` for each id still held when its deadline has passed.

    Holds ids only, so a request that ends early leaves its payload to be freed. One loop
    timer is armed, for the earliest deadline, whatever the number of requests.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        now_ns: Callable[[], int],
        expire: Callable[[int], None],
    ) -> None:
        self._loop = loop
        self._now_ns = now_ns
        self._expire = expire
        self._queue: EdfQueue[int] = EdfQueue(_UNBOUNDED)
        self._timer: asyncio.TimerHandle | None = None
        self._armed_ns = 0

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, item_id: int, deadline_ns: int) -> None:
        """Watch an id until `discard`."""
        self._queue.push(deadline_ns, item_id, item_id)
        if self._timer is None or deadline_ns < self._armed_ns:
            self._arm(deadline_ns)

    def discard(self, item_id: int) -> None:
        """Stop watching an id; it may be unknown. The timer stays: it is cheap to fire early."""
        self._queue.cancel(item_id)

    def close(self) -> None:
        """Stop the timer; nothing expires any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, deadline_ns: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        delay = min((deadline_ns - self._now_ns()) / 1e9, _LONGEST_S)
        self._armed_ns = deadline_ns
        # A loop whose timers count in ms would round a short rest to nothing and spin.
        self._timer = self._loop.call_later(max(delay, 0.001), self._fire)

    def _fire(self) -> None:
        self._timer = None
        now = self._now_ns()
        while (key := self._queue.head_key()) is not None and key <= now:
            item_id = self._queue.pop()
            if item_id is not None:
                self._expire(item_id)
        if key is not None and self._timer is None:
            self._arm(key)
