"""Takes connections for an HTTP server; by TLS each counts from its first moment."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable

from controlplane.http.protocol import Bounds

_log = logging.getLogger(__name__)

# Without descriptors no connection can be taken; others may end meanwhile.
_PAUSE_S = 0.5


class Acceptor:
    """Accepts at a bound socket, which it owns, until it is stopped. Lives on the event loop.

    `protocol` makes one for each connection, `standing` says how many have theirs. With a `context`
    a connection gets its protocol once its handshake is through. Until then it takes a place of
    `bounds`, and its time; what comes when all are taken is closed at once.
    """

    def __init__(
        self,
        bound: socket.socket,
        protocol: Callable[[], asyncio.Protocol],
        *,
        bounds: Bounds,
        standing: Callable[[], int],
        context: ssl.SSLContext | None,
    ) -> None:
        self._bound = bound
        self._protocol = protocol
        self._bounds = bounds
        self._standing = standing
        self._context = context
        self._accepting: asyncio.Task[None] | None = None
        self._taking: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Begin to accept."""
        self._bound.setblocking(False)
        self._accepting = asyncio.create_task(self._accept())

    async def stop(self) -> None:
        """Accept no more, end the handshakes under way, and give up the socket; may be repeated."""
        tasks = [*self._taking]
        if self._accepting is not None:
            tasks.append(self._accepting)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._bound.close()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        failed = False
        while True:
            try:
                connection, _ = await loop.sock_accept(self._bound)
            except OSError as error:
                if not failed:
                    _log.warning("connections cannot be taken: %s", error.strerror or error)
                failed = True
                await asyncio.sleep(_PAUSE_S)
                continue
            failed = False
            taken = self._standing() + len(self._taking)
            # In plain text a connection is told why; without a handshake nobody can be told.
            if self._context is not None and taken >= self._bounds.connections:
                connection.close()
                continue
            task = loop.create_task(self._take(connection))
            self._taking.add(task)
            task.add_done_callback(self._taking.discard)

    async def _take(self, connection: socket.socket) -> None:
        limit_s = self._bounds.handshake_timeout_s if self._context is not None else None
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._protocol, connection, ssl=self._context, ssl_handshake_timeout=limit_s
            )
        except OSError as error:
            # Not by TLS, not trusted, too slow, gone: the transport has closed it.
            _log.debug("a connection came to nothing: %s", error)
