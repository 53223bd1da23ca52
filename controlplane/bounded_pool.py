"""Threads for what would hold the event loop up: a bounded number of jobs, the next one refused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from controlplane.errors import Refused

T = TypeVar("T")

_GAIN = 0.1


@dataclass(frozen=True, slots=True)
class Saturation:
    """Where a pool stands: jobs that wait, jobs that run, and what it may hold."""

    queued: int
    running: int
    threads: int
    capacity: int


class BoundedPool:
    """At most `threads` jobs run at a time and `max_queued` wait. Called on one event loop.

    `doing` says in refusals what happens to jobs, as "texts are being tokenised".
    """

    def __init__(
        self, threads: int, max_queued: int, *, name: str, doing: str, now_ns: Callable[[], int]
    ) -> None:
        self._threads = threads
        self._capacity = threads + max_queued
        self._doing = doing
        self._now_ns = now_ns
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._held = 0
        # Jobs that were refused because the pool was full.
        self.refused = 0
        self._mean_ns = 1e6

    async def run(self, job: Callable[[], T]) -> T:
        """What a job returns or raises; raises Refused when the pool is full."""
        if self._held >= self._capacity:
            self.refused += 1
            wait_ns = self._mean_ns * self._held / self._threads
            raise Refused(
                f"{self._held} {self._doing} or wait for it; the bound is reached",
                retry_after_ms=max(1, round(wait_ns / 1e6)),
            )
        self._held += 1
        started_ns = self._now_ns()
        # Released by the thread's own end, so a caller that goes away frees nothing early.
        future = self._pool.submit(job)
        loop = asyncio.get_running_loop()
        future.add_done_callback(lambda _: loop.call_soon_threadsafe(self._release, started_ns))
        return await asyncio.wrap_future(future)

    def beside(self, job: Callable[[], T]) -> Future[T]:
        """Runs a job of the house itself, which counts for nobody's bound."""
        return self._pool.submit(job)

    def saturation(self) -> Saturation:
        """How full the pool is now."""
        running = min(self._held, self._threads)
        return Saturation(self._held - running, running, self._threads, self._capacity)

    def close(self) -> None:
        """Give the threads back; jobs that still wait for one are dropped."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _release(self, started_ns: int) -> None:
        elapsed_ns = (self._now_ns() - started_ns) * self._threads / max(self._held, self._threads)
        self._mean_ns += _GAIN * (elapsed_ns - self._mean_ns)
        self._held -= 1
