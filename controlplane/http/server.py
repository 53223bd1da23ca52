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

from controlplane.http.accepting import Acceptor
from controlplane.http.protocol import BoundedHeads, Bounds
from protos.listening import cannot_listen

# What callers do is no event of ours, and a line each would let anybody fill the log.
_OF_CALLERS = frozenset(
    ("Invalid HTTP request received.", "ASGI callable returned without completing response.")
)
# Idle connections of clients with a pool live longer than those clients keep them.
_KEEP_ALIVE_S = 65
_BACKLOG = 1024


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
        self._bounds = bounds
        # What it says at INFO is for a program of its own.
        log = logging.getLogger("uvicorn.error")
        log.setLevel(logging.WARNING)
        log.addFilter(_is_ours)
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
        # For the acceptor: the server's own options know no certificates that change.
        self._context = context
        self._server = _Embedded(config)
        self._serving: asyncio.Task[None] | None = None

    async def start(self) -> str:
        """Bind and serve; returns the address with the port that was given.

        Raises OSError when the address cannot be bound.
        """
        bound = _bound(self._listen, self._bounds.unread_s)
        host, port = bound.getsockname()[:2]
        self._server.accept_at(bound, self._bounds, self._context)
        self._serving = asyncio.create_task(self._server.serve(sockets=[]))
        up = asyncio.create_task(self._server.up.wait())
        await asyncio.wait({self._serving, up}, return_when=asyncio.FIRST_COMPLETED)
        if not up.done():
            up.cancel()
            await self._serving
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    @property
    def standing(self) -> int:
        """How many connections there are."""
        return len(self._server.server_state.connections)

    async def stop(self, grace_s: float) -> None:
        """Take no more connections, let calls end for up to `grace_s`, then cancel them."""
        if self._serving is not None:
            self._server.config.timeout_graceful_shutdown = math.ceil(grace_s)
            self._server.should_exit = True
            await self._serving
            self._serving = None


class _Embedded(uvicorn.Server):
    """A server that leaves the process's signals to the process, and connections to an acceptor."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = asyncio.Event()
        self._acceptor: Acceptor | None = None

    def accept_at(
        self, bound: socket.socket, bounds: Bounds, context: ssl.SSLContext | None
    ) -> None:
        """Where its connections come from, once it has started."""
        self._acceptor = Acceptor(
            bound,
            self._protocol,
            bounds=bounds,
            standing=lambda: len(self.server_state.connections),
            context=context,
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """The control plane has handlers of its own."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to serve, and say so."""
        await super().startup(sockets)
        if self._acceptor is not None:
            self._acceptor.start()
        self.up.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take no more connections, then end those that stand."""
        if self._acceptor is not None:
            await self._acceptor.stop()
        await super().shutdown(sockets)

    def _protocol(self) -> asyncio.Protocol:
        make = cast(Any, self.config.http_protocol_class)
        made: asyncio.Protocol = make(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return made


def _is_ours(record: logging.LogRecord) -> bool:
    return record.getMessage() not in _OF_CALLERS


def _bound(listen: str, unread_s: float) -> socket.socket:
    host, _, port = listen.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        bound = socket.create_server((host, int(port)), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise cannot_listen(listen, error, "HTTP") from None
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        # Connections inherit it.
        bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(unread_s * 1e3))
    return bound
