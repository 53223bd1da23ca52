"""Drives the scheduler: once for what happens in a turn of the loop, and when a worker is due."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from controlplane.policy.hands import Flight
from controlplane.policy.scheduler import Scheduler, Shed


class Pump:
    """Applies what the scheduler decides through `send` and `shed`. Lives on the event loop.

    One timer serves all workers that want more before they are free; it is armed only
    while something is queued.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        *,
        now_ns: Callable[[], int],
        loop: asyncio.AbstractEventLoop,
        send: Callable[[Flight], None],
        shed: Callable[[Shed], None],
    ) -> None:
        self._scheduler = scheduler
        self._now_ns = now_ns
        self._loop = loop
        self._send = send
        self._shed = shed
        self._scheduled = False
        self._wake: asyncio.TimerHandle | None = None
        self._wake_ns = 0

    def soon(self, turns: int = 1) -> None:
        """Pump at the end of this turn of the loop, or `turns` of them later."""
        if not self._scheduled:
            self._scheduled = True
            self._turn(turns)

    def close(self) -> None:
        """Stop the timer."""
        if self._wake is not None:
            self._wake.cancel()
            self._wake = None

    def _turn(self, left: int) -> None:
        if left > 1:
            self._loop.call_soon(self._turn, left - 1)
        else:
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._scheduled = False
        now = self._now_ns()
        while (step := self._scheduler.next_step(now)) is not None:
            if isinstance(step, Shed):
                self._shed(step)
            else:
                self._send(step)
        wake_ns = self._scheduler.wake_ns()
        if wake_ns is not None and (self._wake is None or wake_ns < self._wake_ns):
            if self._wake is not None:
                self._wake.cancel()
            self._wake_ns = wake_ns
            # A loop whose timers count in ms would round a short rest to nothing and spin.
            self._wake = self._loop.call_later(max((wake_ns - now) / 1e9, 0.001), self._woken)

    def _woken(self) -> None:
        self._wake = None
        self._pump()
