"""The control plane's end of Execute on a socket, to a worker of this machine.

The messages are those of the gRPC stream (docs/decisions/0090-local-streams.md). Everything lives
on the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, cast

from protos.codec import LARGE_BYTES, Part
from protos.local_stream import FrameFault, Frames, address_of, header, same_user

_log = logging.getLogger(__name__)

# A worker lets a caller wait while it may hear its own welcome first.
_WELCOME_S: Final = 5.0


class LocalStream:
    """One connection to one worker; an asyncio protocol.

    `received` is called with each message, `writable` when messages may be written again.
    `paused` says that the worker does not read as fast as it is written to.
    """

    def __init__(
        self,
        worker_id: str,
        max_message_bytes: int,
        received: Callable[[bytes], None],
        writable: Callable[[], None],
    ) -> None:
        loop = asyncio.get_running_loop()
        self._worker_id = worker_id
        self._received = received
        self._writable = writable
        self._frames = Frames(max_message_bytes)
        self._transport: Any = None
        self._welcome: asyncio.Future[bool] = loop.create_future()
        self._welcomed = False
        self.paused = False
        # Done when the connection is no more, with the fault of ours that ended it if one did.
        self.ended: asyncio.Future[None] = loop.create_future()

    def connection_made(self, transport: Any) -> None:
        """The worker's process took the connection."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """The worker's id, then its messages."""
        try:
            for message in self._frames.feed(data):
                if self._welcomed:
                    self._received(message)
                else:
                    self._greeted(message)
        except FrameFault as fault:
            _log.warning("the local stream of worker %s ends: %s", self._worker_id, fault)
            self.abort()
        except Exception as error:
            if not self.ended.done():
                self.ended.set_exception(error)
            self.abort()

    def eof_received(self) -> None:
        """The worker has ended the stream."""

    def connection_lost(self, error: Exception | None) -> None:
        """The connection is no more."""
        self._transport = None
        if not self._welcome.done():
            self._welcome.set_result(False)
        if not self.ended.done():
            self.ended.set_result(None)

    def pause_writing(self) -> None:
        """So much is on its way that no more should follow."""
        self.paused = True

    def resume_writing(self) -> None:
        """Room again."""
        self.paused = False
        self._writable()

    async def greet(self, controlplane_id: str) -> bool:
        """Say who calls; returns whether the worker takes work from here."""
        self.write((controlplane_id.encode(),))
        welcomed = False
        with suppress(TimeoutError):
            async with asyncio.timeout(_WELCOME_S):
                welcomed = await self._welcome
        return welcomed

    def write(self, parts: Sequence[Part]) -> None:
        """Send the message that is made of these parts; nothing once the connection is lost."""
        transport = self._transport
        if transport is None:
            return
        size = sum(map(len, parts))
        if size < LARGE_BYTES:
            transport.write(b"".join((header(size), *parts)))
        else:
            transport.writelines((header(size), *parts))

    def abort(self) -> None:
        """End the connection; the worker cancels what it still has."""
        if self._transport is not None:
            self._transport.abort()

    def _greeted(self, message: bytes) -> None:
        if message != self._worker_id.encode():
            raise FrameFault("it is another worker's")
        self._welcomed = True
        if not self._welcome.done():
            self._welcome.set_result(True)


async def open_local(
    name: str,
    *,
    controlplane_id: str,
    worker_id: str,
    max_message_bytes: int,
    received: Callable[[bytes], None],
    writable: Callable[[], None],
) -> LocalStream | None:
    """The stream to a worker by the name of its socket; None when that is not to be had.

    The worker is on another machine then, in another network namespace, of another user, or it
    takes no work from here: gRPC finds out.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    stream = LocalStream(worker_id, max_message_bytes, received, writable)
    try:
        connection.setblocking(False)
        connection.connect(address_of(name))
        if not same_user(connection):
            raise OSError("it is of another user")
        await asyncio.get_running_loop().create_unix_connection(
            cast(Any, lambda: stream), sock=connection
        )
    except (OSError, ValueError) as error:
        connection.close()
        _log.debug("worker %s has no local stream for this process: %s", worker_id, error)
        return None
    welcomed = False
    try:
        welcomed = await stream.greet(controlplane_id)
    finally:
        # Also when the worker's session ends meanwhile: nobody else knows of the connection.
        if not welcomed:
            stream.abort()
    return stream if welcomed else None
