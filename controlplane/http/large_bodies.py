"""Where bodies are read: small ones on the event loop, large ones on a thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from controlplane.bounded_pool import BoundedPool

T = TypeVar("T")

# What less JSON than this takes is over before a thread would give way to the event loop
# (docs/decisions/0111-large-bodies-on-a-thread.md).
INLINE_BYTES = 512 << 10
# Bodies that wait for the thread, each of which holds its bytes.
_MOST_WAITING = 8


class LargeBodies:
    """Reads bodies, large ones one after the other. Called on one event loop."""

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self._pool = BoundedPool(
            1,
            _MOST_WAITING,
            name="orchid-bodies",
            doing="large bodies are being read",
            now_ns=now_ns,
        )

    async def read(self, size: int, job: Callable[[], T]) -> T:
        """What `job` makes of `size` bytes of JSON; raises Refused when too many wait.

        It may run on another thread and shall return only what is kept: to let go of what was
        read takes as long as a part of reading it.
        """
        if size <= INLINE_BYTES:
            return job()
        return await self._pool.run(job)

    def close(self) -> None:
        """Give the thread back."""
        self._pool.close()
