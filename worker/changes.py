"""Tells tasks of the event loop that something they show to others has changed."""

from __future__ import annotations

import asyncio
import contextlib


class Changes:
    """A counter of changes to wait on; belongs to one event loop."""

    def __init__(self) -> None:
        self.version = 0
        self._event = asyncio.Event()

    def notify(self) -> None:
        """Counts a change and wakes whoever waits."""
        self.version += 1
        self._event.set()
        self._event = asyncio.Event()

    async def wait(self, seen: int, timeout_s: float | None = None) -> int:
        """Returns the version once it is not `seen` any more, or when the time is over."""
        if self.version == seen:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._event.wait(), timeout_s)
        return self.version
