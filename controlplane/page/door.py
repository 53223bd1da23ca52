"""The status page, put together: what it looks at, and its life."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from controlplane.http.protocol import Bounds
from controlplane.http.server import HttpServer
from controlplane.page.app import application
from controlplane.page.feed import Feed
from controlplane.page.snapshot import Sources
from controlplane.page.view import HouseView
from controlplane.security.house import OPEN, Security
from protos.exposure import is_loopback
from protos.tls import listener_context

# Browsers hold a few connections each; readers of the stream are bounded apart. What a reader does
# not take waits in its system, so that its stream seems to go on until nothing fits there.
_BOUNDS = Bounds(connections=128, unread_s=15.0)


class PageDoor:
    """Serves the status page at `listen`; call everything on the event loop.

    `usage` gives the CPU seconds of the process and its resident bytes.
    """

    def __init__(
        self,
        listen: str,
        sources: Sources,
        *,
        now_ns: Callable[[], int],
        wall_ms: Callable[[], int],
        usage: Callable[[], tuple[float, int]],
        loop: asyncio.AbstractEventLoop,
        security: Security = OPEN,
    ) -> None:
        view = HouseView(sources, now_ns=now_ns, wall_ms=wall_ms, usage=usage)
        self._feed = Feed(view, loop=loop)
        context = listener_context(security.certificates)
        self._scheme = "http" if context is None else "https"
        self._server = HttpServer(
            application(self._feed, loopback=is_loopback(listen), guard=security.guard),
            listen,
            bounds=_BOUNDS,
            context=context,
        )

    async def start(self) -> str:
        """Serve; returns the page's URL, without a path. Raises OSError when it cannot bind."""
        address = await self._server.start()
        self._feed.start()
        return f"{self._scheme}://{address}"

    async def stop(self) -> None:
        """End every stream and serve no more."""
        self._feed.close()
        await self._server.stop(1)
