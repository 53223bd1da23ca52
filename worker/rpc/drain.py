"""Draining: refuse new work, finish the old, then answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


class Drained(Protocol):
    """A loop that can be drained, as `EngineLoop`."""

    def drain(self) -> int:
        """Refuses work from now on; returns how much is still to be answered."""

    def when_idle(self, callback: Callable[[], None]) -> None:
        """Calls back once, on the event loop, when everything is answered."""

    def abandon(self) -> int:
        """Answers the rest as unavailable; returns how much that was."""


@dataclass(frozen=True, slots=True)
class DrainReport:
    """Items that were unanswered when the drain began: how many finished, how many did not."""

    finished_items: int
    abandoned_items: int


class Drainer:
    """Drains one engine loop. Lives on the event loop; `on_drain` is called when it begins."""

    def __init__(self, engine: Drained, on_drain: Callable[[], None]) -> None:
        self._engine = engine
        self._on_drain = on_drain
        self.draining = False

    async def drain(self, timeout_s: float | None) -> DrainReport:
        """Returns when every accepted item has its answer.

        What is left after `timeout_s` (None waits for all of it) is terminated and answered
        as unavailable. A drained worker stays drained.
        """
        before = self._engine.drain()
        if not self.draining:
            self.draining = True
            self._on_drain()
        idle = asyncio.Event()
        self._engine.when_idle(idle.set)
        abandoned = 0
        try:
            await asyncio.wait_for(idle.wait(), timeout_s)
        except TimeoutError:
            abandoned = self._engine.abandon()
            await idle.wait()
        return DrainReport(before - abandoned, abandoned)
