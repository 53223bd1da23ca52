"""The HTTP server inside the control plane's event loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import socket
import ssl
from collections.abc import Generator
from functools import partial
from typing import Any, cast

import uvicorn
from starlette.types import ASGIApp

from controlplane.http.protocol import BoundedHeads, Bounds

# Idle connections of clients with a pool live longer than those clients keep them.
_KEEP_ALIVE_S = 65
_BACKLOG = 1024
# A connection whose caller takes nothing of what was sent is ended after so long.
_UNREAD_MS = 120_000


class HttpServer:
    """Owns the HTTP server's life; call everything on one event loop."""

    def __init__(
        self,
        app: ASGIApp,
        listen: str,
        *,
        bounds: Bounds,
        context: ssl.SSLContext | None = None,
    ) -> None:
        self._listen = listen
        # What it says at INFO is for a program of its own.
        logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
        config = uvicorn.Config(
            app,
            loop="none",
            http=cast(Any, partial(BoundedHeads, bounds=bounds)),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=_KEEP_ALIVE_S,
        )
        config.load()
        # Its own options know no certificates that change.
        config.ssl = context
        self._server = _Embedded(config)
        self._serving: asyncio.Task[None] | None = None

    async def start(self) -> str:
        """Bind and serve; returns the address with the port that was given.

        Raises OSError when the address cannot be bound.
        """
        bound = _bound(self._listen)
        host, port = bound.getsockname()[:2]
        self._serving = asyncio.create_task(self._server.serve(sockets=[bound]))
        up = asyncio.create_task(self._server.up.wait())
        await asyncio.wait({self._serving, up}, return_when=asyncio.FIRST_COMPLETED)
        if not up.done():
            up.cancel()
            await self._serving
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    async def stop(self, grace_s: float) -> None:
        """Take no more connections, let calls end for up to `grace_s`, then cancel them."""
        if self._serving is not None:
            self._server.config.timeout_graceful_shutdown = math.ceil(grace_s)
            self._server.should_exit = True
            await self._serving
            self._serving = None


class _Embedded(uvicorn.Server):
    """A server that leaves the process's signals to the process."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """The control plane has handlers of its own."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to serve, and say so."""
        await super().startup(sockets)
        self.up.set()


def _bound(listen: str) -> socket.socket:
    host, _, port = listen.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        bound = socket.create_server((host, int(port)), family=family, backlog=_BACKLOG)
    except OSError as error:
        reason = error.strerror or str(error)
        raise OSError(f"cannot listen for HTTP on {listen}: {reason}") from None
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        # Connections inherit it.
        bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNREAD_MS)
    return bound
