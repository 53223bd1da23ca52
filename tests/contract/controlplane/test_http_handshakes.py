"""Handshakes at the HTTP door: they take places, and end in time."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop
from starlette.responses import PlainTextResponse

from bench.certificates import Authority
from controlplane.config import ControlPlaneConfig
from controlplane.http.protocol import Bounds
from controlplane.http.server import HttpServer
from protos.tls import listener_context
from tests.contract.controlplane.secured import security_of, tls_of

Runner = Callable[[Coroutine[Any, Any, None]], None]
# The event loops take connections each in its own way.
RUNNERS = pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])


@asynccontextmanager
async def door(folder: Path, bounds: Bounds) -> AsyncIterator[tuple[str, int, ssl.SSLContext]]:
    """A server by TLS that says hello: its host and port, and whom to trust."""
    authority = Authority(folder)
    security = security_of(ControlPlaneConfig(tls=tls_of(authority, mutual=False)))
    server = HttpServer(
        PlainTextResponse("hello"),
        "127.0.0.1:0",
        bounds=bounds,
        context=listener_context(security.certificates),
    )
    host, _, port = (await server.start()).rpartition(":")
    try:
        yield host, int(port), ssl.create_default_context(cafile=str(authority.path))
    finally:
        await server.stop(1)


async def hello(host: str, port: int, trusting: ssl.SSLContext) -> bytes:
    """The answer to one call on a connection of its own."""
    reader, writer = await asyncio.open_connection(host, port, ssl=trusting)
    writer.write(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    answer = await reader.read()
    writer.close()
    return answer


@RUNNERS
def test_handshakes_that_do_not_end_take_places_for_a_while(run: Runner, tmp_path: Path) -> None:
    async def scenario() -> None:
        bounds = Bounds(connections=3, handshake_timeout_s=0.5)
        async with asyncio.timeout(60), door(tmp_path, bounds) as (host, port, trusting):
            silent = [await asyncio.open_connection(host, port) for _ in range(3)]
            # Nothing is said to who comes when all places are taken, not even a handshake.
            late, their = await asyncio.open_connection(host, port)
            assert await late.read() == b""
            for reader, writer in silent:
                assert await reader.read() == b""
                writer.close()
            their.close()
            assert (await hello(host, port, trusting)).endswith(b"hello")

    run(scenario())


@RUNNERS
def test_what_is_no_handshake_costs_others_nothing(run: Runner, tmp_path: Path) -> None:
    async def scenario() -> None:
        bounds = Bounds(connections=2, handshake_timeout_s=30.0)
        async with asyncio.timeout(60), door(tmp_path, bounds) as (host, port, trusting):
            for _ in range(5):
                reader, writer = await asyncio.open_connection(host, port)
                writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
                with contextlib.suppress(ConnectionError):
                    await reader.read()
                writer.close()
            untrusting = ssl.create_default_context()
            for _ in range(3):
                with pytest.raises(ssl.SSLError):
                    await hello(host, port, untrusting)
            for _ in range(3):
                assert (await hello(host, port, trusting)).endswith(b"hello")

    run(scenario())


@RUNNERS
def test_stopping_ends_handshakes_under_way(run: Runner, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with asyncio.timeout(60):
            async with door(tmp_path, Bounds(handshake_timeout_s=600.0)) as (host, port, _):
                reader, writer = await asyncio.open_connection(host, port)
            assert await reader.read() == b""
            writer.close()

    run(scenario())
