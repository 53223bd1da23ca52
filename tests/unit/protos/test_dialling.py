"""Peers that are gone without having closed their connection."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from protos.dialling import keepalive

# gRPC's own minute for the answer to a ping is longer than this.
PATIENCE_S = 40.0


class Wire:
    """A connection's two ends, joined until `cut`: then neither hears the other, nor an end."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._pumps: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []
        self._cut = False

    async def joined(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Join one connection to the server."""
        there, back = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers += [writer, back]
        for source, target in ((reader, back), (there, writer)):
            self._pumps.add(asyncio.create_task(self._pump(source, target)))

    def cut(self) -> None:
        """Nothing comes through any more."""
        self._cut = True

    def close(self) -> None:
        """End what there is."""
        for pump in self._pumps:
            pump.cancel()
        for writer in self._writers:
            writer.close()

    async def _pump(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await source.read(1 << 16):
                if not self._cut:
                    target.write(data)


class Service:
    """Streams a byte now and then; `ended` once its caller is known to be gone."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()

    async def stream(self, _: bytes, context: Any) -> None:
        try:
            while True:
                await context.write(b"x")
                await asyncio.sleep(0.01)
        finally:
            self.ended.set()


@contextlib.asynccontextmanager
async def joined(
    service: Service, *, server: tuple[tuple[str, int], ...], client: tuple[tuple[str, int], ...]
) -> AsyncIterator[tuple[Wire, Any]]:
    """A wire between a server with these options and a call of a channel with those."""
    served = grpc.aio.server(options=server)
    method: Any = grpc.unary_stream_rpc_method_handler(service.stream)
    served.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("t.T", {"S": method})])
    port = served.add_insecure_port("127.0.0.1:0")
    await served.start()
    wire = Wire(port)
    door = await asyncio.start_server(wire.joined, "127.0.0.1", 0)
    address = f"127.0.0.1:{door.sockets[0].getsockname()[1]}"
    async with grpc.aio.insecure_channel(address, options=client) as channel:
        try:
            call: Any = channel.unary_stream("/t.T/S")
            yield wire, call(b"")
        finally:
            wire.close()
            door.close()
            await served.stop(None)


async def read_on(call: Any) -> None:
    """Read whatever comes; raises what the call ends with."""
    while True:
        await call.read()


async def test_a_caller_hears_that_its_server_is_gone() -> None:
    async with joined(Service(), server=(), client=keepalive(300, 500)) as (wire, call):
        for _ in range(20):
            assert await call.read() == b"x"
        wire.cut()
        with pytest.raises(grpc.aio.AioRpcError) as gone:
            await asyncio.wait_for(read_on(call), PATIENCE_S)
        assert gone.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_server_hears_that_its_caller_is_gone() -> None:
    service = Service()
    async with joined(service, server=keepalive(300, 500), client=()) as (wire, call):
        assert await call.read() == b"x"
        wire.cut()
        async with asyncio.timeout(PATIENCE_S):
            await service.ended.wait()
