"""Waiting for a due time, for drivers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def sleep_until(due_ns: int, now: Callable[[], int]) -> None:
    """Sleeps until `now` shows a due time, by whole milliseconds: finer waits would spin."""
    while True:
        wait_ns = due_ns - now()
        if wait_ns <= 0:
            return
        await asyncio.sleep(-(-wait_ns // 1_000_000) / 1e3)
