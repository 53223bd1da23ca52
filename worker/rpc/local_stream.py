"""Execute on a socket of the worker's machine, for a control plane that runs on it as well.

The messages are those of the gRPC stream. Between two processes of one machine HTTP/2 and the
threads of its library cost more than all that a short run needs
(docs/decisions/0090-local-streams.md). Everything lives on the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections.abc import Awaitable, Callable
from typing import Any, cast

from google.protobuf.message import DecodeError

from protos.codec import LARGE_BYTES
from protos.local_stream import FrameFault, Frames, address_of, header, same_user
from protos.orchid.v1 import worker_pb2
from worker.errors import WorkerError, where_raised
from worker.rpc.execute import MOST_UNREAD, ExecuteParts, ExecuteStream

log = logging.getLogger(__name__)

# Whoever connects says who he is within this; nobody is held a place for.
_HELLO_S = 5.0


class LocalStream:
    """One connection, from its hello to its end; an asyncio protocol.

    `check` is called with the caller's control plane id and returns when that may give work, or
    raises WorkerError. `streams` holds every stream that is open, by its control plane.
    """

    def __init__(
        self,
        parts: ExecuteParts,
        worker_id: str,
        check: Callable[[str], Awaitable[str]],
        streams: dict[ExecuteStream, str],
    ) -> None:
        self._parts = parts
        self._worker_id = worker_id
        self._check = check
        self._streams = streams
        self._loop = asyncio.get_running_loop()
        self._frames = Frames(parts.max_message_bytes)
        self._transport: Any = None
        self._stream: ExecuteStream | None = None
        self._welcoming: asyncio.Task[None] | None = None
        self._unheard: asyncio.TimerHandle | None = None
        self._flushing = False
        self._deaf = False
        self._held = False
        # Done when the connection is no more.
        self.closed: asyncio.Future[None] = self._loop.create_future()

    def connection_made(self, transport: Any) -> None:
        """Somebody connected; only processes of the worker's own user are heard."""
        self._transport = transport
        if not same_user(transport.get_extra_info("socket")):
            log.warning("a process of another user asked for a local stream and was refused")
            transport.abort()
            return
        self._unheard = self._loop.call_later(_HELLO_S, self.abort)

    def data_received(self, data: bytes) -> None:
        """The hello, or messages; whatever cannot be read ends the connection."""
        try:
            messages = self._frames.feed(data)
            stream = self._stream
            if stream is not None:
                # What is answered at once leaves in this turn of the loop.
                self._flushing = True
                stream.receive([worker_pb2.ExecuteRequest.FromString(each) for each in messages])
                self._flush()
            elif messages:
                self._hello(messages)
        except (FrameFault, DecodeError, UnicodeDecodeError) as error:
            log.warning("a local stream ends: %s", type(error).__name__)
            self.abort()
        except Exception as fault:
            self._fail(fault)

    def eof_received(self) -> None:
        """The caller is gone, and with it whoever waits for results."""

    def connection_lost(self, error: Exception | None) -> None:
        """Nobody waits for what is still here."""
        self._transport = None
        self._heard()
        if self._welcoming is not None:
            self._welcoming.cancel()
        if self._stream is not None:
            self._streams.pop(self._stream, None)
            self._stream.abandon()
        if not self.closed.done():
            self.closed.set_result(None)

    def pause_writing(self) -> None:
        """The caller does not read as fast as it is answered."""
        self._deaf = True

    def resume_writing(self) -> None:
        """It has caught up."""
        self._deaf = False
        self._flush()

    def _hello(self, messages: list[bytes]) -> None:
        if len(messages) > 1 or self._welcoming is not None:
            raise FrameFault("work came before the welcome")
        self._heard()
        self._welcoming = self._loop.create_task(self._welcome(messages[0].decode("utf-8")))

    def _heard(self) -> None:
        """Nobody waits for a hello any more."""
        if self._unheard is not None:
            self._unheard.cancel()
            self._unheard = None

    async def _welcome(self, said: str) -> None:
        try:
            owner = await self._check(said)
        except WorkerError:
            # The caller comes again by gRPC, where it is told why.
            self.abort()
            return
        if self._transport is None:
            return
        self._stream = stream = ExecuteStream(self._parts, self._rouse)
        self._streams[stream] = owner
        name = self._worker_id.encode()
        self._transport.write(header(len(name)) + name)

    def _rouse(self) -> None:
        """Something is ready, or the stream is to end: look in the next turn of the loop."""
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        stream, transport = self._stream, self._transport
        if stream is None or transport is None:
            return
        try:
            while stream.unread and not self._deaf:
                self._write(stream, transport)
        except Exception as fault:
            self._fail(fault)
            return
        if stream.over:
            transport.close()
        else:
            self._hold()

    def _write(self, stream: ExecuteStream, transport: Any) -> None:
        outcomes, size = stream.take()
        response = stream.response(outcomes, size)
        data = response if isinstance(response, bytes) else response.SerializeToString()
        if len(data) < LARGE_BYTES:
            transport.write(header(len(data)) + data)
        else:
            transport.writelines((header(len(data)), data))
        # The caller need not wait for it.
        stream.record(outcomes)

    def _hold(self) -> None:
        """Read on only while the caller takes its answers."""
        if self._stream is None or self._transport is None:
            return
        full = self._stream.unread > MOST_UNREAD
        if full != self._held:
            self._held = full
            if full:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def _fail(self, fault: Exception) -> None:
        """A fault of ours ends the stream."""
        log.error("local stream failed with %s at\n%s", type(fault).__name__, where_raised(fault))
        self.abort()

    @property
    def serves(self) -> bool:
        """Whether its caller was welcomed, and may wait for answers."""
        return self._stream is not None

    def abort(self) -> None:
        """Ends the connection, and with it what still runs for it."""
        if self._transport is not None:
            self._transport.abort()


class LocalListener:
    """Where control planes of this machine ask for a stream; `name` is empty while nobody can."""

    def __init__(self, make: Callable[[], LocalStream]) -> None:
        self._make = make
        self._server: asyncio.AbstractServer | None = None
        self._open: set[LocalStream] = set()
        self.name = ""

    async def start(self) -> None:
        """Listens, where the system has such sockets."""
        name = f"orchid-worker-{os.getpid()}-{secrets.token_hex(8)}"
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_unix_server(
                cast(Any, self._accepted), address_of(name)
            )
        except OSError as error:
            log.info("no local streams here: %s", error.strerror or type(error).__name__)
            return
        self.name = name

    async def stop(self, grace_s: float) -> None:
        """Takes no further connection; those that stand may end for so long, then they are ended.

        Called once their streams are closed.
        """
        self.name = ""
        if self._server is not None:
            self._server.close()
            self._server = None
        for stream in tuple(self._open):
            if not stream.serves:
                stream.abort()
        if self._open:
            await asyncio.wait([stream.closed for stream in self._open], timeout=grace_s)
        for stream in tuple(self._open):
            stream.abort()

    def _accepted(self) -> LocalStream:
        stream = self._make()
        self._open.add(stream)
        stream.closed.add_done_callback(lambda _: self._open.discard(stream))
        return stream
