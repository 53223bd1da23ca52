"""The bare two-hop echo that path cost is measured against.

A front process takes raw bytes, as unary calls or many in flight on a stream, and relays
each on one bidirectional stream to a back process, which answers every message with fixed
bytes. This is the least a front door with workers behind it can do in grpc.aio; no message is
parsed.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import grpc
import uvloop

UNARY_METHOD = "/orchid.bench.Echo/Unary"
STREAM_METHOD = "/orchid.bench.Echo/Stream"
# A streamed message ends with its number, and its answer begins with it.
ID_BYTES = 8
# What Orchid's servers and its channel to a worker set, so that neither side is favoured.
_SERVER_OPTIONS = (
    ("grpc.so_reuseport", 0),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 1 << 20),
)
_CHANNEL_OPTIONS = (("grpc.keepalive_time_ms", 10_000), ("grpc.enable_retries", 0))


class Relay:
    """The front's side of the stream: writes in turn, hands answers to their callers."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._call: grpc.aio.StreamStreamCall[bytes, bytes] = channel.stream_stream(STREAM_METHOD)()
        self._outgoing: asyncio.Queue[bytes] = asyncio.Queue()
        self._waiting: dict[bytes, asyncio.Future[bytes]] = {}
        self._next = 0
        self._tasks = (asyncio.create_task(self._write()), asyncio.create_task(self._read()))

    async def unary(self, request: bytes, context: object) -> bytes:
        """One relayed request."""
        self._next += 1
        key = self._next.to_bytes(ID_BYTES, "little")
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting[key] = future
        self._outgoing.put_nowait(key + request)
        try:
            return await future
        finally:
            del self._waiting[key]

    async def stream(self, request: object, context: Any) -> None:
        """Many requests of one caller, each relayed at once and answered as it comes back."""
        answers: asyncio.Queue[bytes] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        unanswered = 0

        async def write() -> None:
            nonlocal unanswered
            while True:
                await context.write(await answers.get())
                unanswered -= 1
                if ending.is_set() and not unanswered:
                    return

        ending = asyncio.Event()
        writer = loop.create_task(write())
        while (message := await context.read()) is not grpc.aio.EOF:
            self._next += 1
            key = self._next.to_bytes(ID_BYTES, "little")
            future: asyncio.Future[bytes] = loop.create_future()
            self._waiting[key] = future
            self._outgoing.put_nowait(key + message)
            unanswered += 1
            number = message[-ID_BYTES:]

            def ended(
                done: asyncio.Future[bytes], key: bytes = key, number: bytes = number
            ) -> None:
                del self._waiting[key]
                answers.put_nowait(number + done.result())

            future.add_done_callback(ended)
        ending.set()
        if unanswered:
            await writer
        writer.cancel()

    async def _write(self) -> None:
        while True:
            await self._call.write(await self._outgoing.get())

    async def _read(self) -> None:
        async for message in self._call:
            future = self._waiting.get(message[:ID_BYTES])
            if future is not None and not future.done():
                future.set_result(message[ID_BYTES:])


async def _serve_back(answer: bytes) -> None:
    async def echo(requests: AsyncIterator[bytes], context: object) -> AsyncIterator[bytes]:
        async for request in requests:
            yield request[:ID_BYTES] + answer

    await _serve({STREAM_METHOD: grpc.stream_stream_rpc_method_handler(echo)})


async def _serve_front(back: str) -> None:
    async with grpc.aio.insecure_channel(back, options=_CHANNEL_OPTIONS) as channel:
        relay = Relay(channel)
        await _serve(
            {
                UNARY_METHOD: grpc.unary_unary_rpc_method_handler(relay.unary),
                STREAM_METHOD: grpc.stream_stream_rpc_method_handler(relay.stream),
            }
        )


async def _serve(methods: Mapping[str, grpc.RpcMethodHandler[bytes, bytes]]) -> None:
    service = UNARY_METHOD[1:].partition("/")[0]
    handlers = {method.rpartition("/")[2]: handler for method, handler in methods.items()}
    server = grpc.aio.server(options=_SERVER_OPTIONS)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    sys.stdout.write(f"127.0.0.1:{port}\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.read)
    await server.stop(None)


def main() -> None:
    """`bench.echo back --answer FILE` or `bench.echo front --back HOST:PORT`.

    Prints its address, then serves until its standard input is closed.
    """
    parser = argparse.ArgumentParser(prog="bench.echo")
    parser.add_argument("role", choices=("front", "back"))
    parser.add_argument("--answer", type=Path)
    parser.add_argument("--back", default="")
    options = parser.parse_args()
    if options.role == "back":
        uvloop.run(_serve_back(options.answer.read_bytes()))
    else:
        uvloop.run(_serve_front(options.back))


if __name__ == "__main__":
    main()
