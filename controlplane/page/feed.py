"""One look at the house a second, for everybody who listens; nobody is waited for."""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

_log = logging.getLogger(__name__)

INTERVAL_S = 1.0
MOST_LISTENERS = 16
# A listener that took nothing for so many intervals is let go.
MOST_BEHIND = 15


class View(Protocol):
    """What is shown. Neither call blocks or raises for anything that callers can do."""

    def sample(self) -> None:
        """Take the totals of this moment into the history."""

    def render(self, *, whole: bool) -> bytes:
        """The house now as one line of JSON, with the whole history or its newest sample."""


class Full(Exception):
    """As many listen as may."""


class Listener:
    """One reader. It holds the newest message only, so a slow one skips, and costs no more."""

    def __init__(self) -> None:
        self._message: bytes | None = None
        self._event = asyncio.Event()
        self._ended = asyncio.Event()
        self.behind = 0

    @property
    def waiting(self) -> bool:
        """Whether there is a message that was not taken."""
        return self._message is not None

    async def next(self) -> bytes | None:
        """The newest message, waited for if need be; None when there will be no more."""
        while self._message is None and not self._ended.is_set():
            self._event.clear()
            await self._event.wait()
        if self._ended.is_set():
            return None
        message, self._message = self._message, None
        self.behind = 0
        return message

    async def closed(self) -> None:
        """Returns once there will be no more messages."""
        await self._ended.wait()

    def put(self, message: bytes) -> None:
        """A new message, in place of one that was not taken."""
        self.behind += self.waiting
        self._message = message
        self._event.set()

    def close(self) -> None:
        """No more messages; may be repeated."""
        self._ended.set()
        self._event.set()


class Feed:
    """Looks once a second while it runs; builds a snapshot only while somebody listens.

    Everything is called on one event loop.
    """

    def __init__(
        self,
        view: View,
        *,
        loop: asyncio.AbstractEventLoop,
        interval_s: float = INTERVAL_S,
        most: int = MOST_LISTENERS,
    ) -> None:
        self._view = view
        self._loop = loop
        self._interval_s = interval_s
        self._most = most
        self._listeners: set[Listener] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        # What was rendered since the last look, by `whole`.
        self._rendered: dict[bool, bytes] = {}
        self.dropped = 0

    @property
    def listeners(self) -> int:
        """How many listen."""
        return len(self._listeners)

    def start(self) -> None:
        """Begin to look."""
        self._view.sample()
        self._later()

    def close(self) -> None:
        """End every listener and stop looking; may be repeated."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for listener in tuple(self._listeners):
            self.leave(listener)

    def listen(self) -> Listener:
        """A new listener, which has its first message at once. Raises Full."""
        if self._closed or len(self._listeners) >= self._most:
            raise Full(f"{self._most} listen already; the bound is reached")
        listener = Listener()
        listener.put(self.now(whole=True))
        self._listeners.add(listener)
        return listener

    def leave(self, listener: Listener) -> None:
        """A listener went away, or is to go; may be repeated."""
        self._listeners.discard(listener)
        listener.close()

    def now(self, *, whole: bool) -> bytes:
        """The snapshot of this interval; made once, whoever asks."""
        message = self._rendered.get(whole)
        if message is None:
            message = self._rendered[whole] = self._view.render(whole=whole)
        return message

    def _later(self) -> None:
        self._timer = self._loop.call_later(self._interval_s, self._look)

    def _look(self) -> None:
        self._later()
        self._view.sample()
        self._rendered.clear()
        for listener in tuple(self._listeners):
            if listener.behind >= MOST_BEHIND:
                self.dropped += 1
                _log.info("a reader of the status page took nothing for a while and was let go")
                self.leave(listener)
            else:
                # With a message that was not taken its sample is lost, too.
                listener.put(self.now(whole=listener.waiting))
