"""An event loop whose time is virtual: timers fire at once, in order, and nothing sleeps."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any


class _Selector(selectors.BaseSelector):
    """Never waits: where the loop would sleep, its time jumps to the next timer."""

    def __init__(self) -> None:
        self._real = selectors.DefaultSelector()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = self._real.select(0)
        if not ready and timeout is None:
            raise RuntimeError("nothing is left that could wake the loop")
        if not ready and timeout is not None:
            self.now += timeout
        return ready

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._real.unregister(fileobj)

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.modify(fileobj, events, data)

    def get_map(self) -> Any:
        return self._real.get_map()

    def close(self) -> None:
        self._real.close()


class VirtualLoop(asyncio.SelectorEventLoop):
    """`time()` starts at 0 and moves only when every callback has run."""

    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now

    def jump(self, seconds: float) -> None:
        """Let time pass while nothing runs, as when a process is stopped."""
        self._virtual.now += seconds

    def now_ns(self) -> int:
        """The same time as an integer clock."""
        return round(self._virtual.now * 1e9)


def run(main: Coroutine[Any, Any, None]) -> None:
    """Run a test on a virtual loop of its own."""
    loop = VirtualLoop()
    try:
        loop.run_until_complete(main)
    finally:
        loop.close()


def virtual(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """A coroutine as a test that runs on a virtual loop of its own."""

    @wraps(test)
    def on_a_loop_of_its_own() -> None:
        run(test())

    # Otherwise pytest takes the test for the coroutine that it wraps.
    del on_a_loop_of_its_own.__wrapped__
    return on_a_loop_of_its_own
