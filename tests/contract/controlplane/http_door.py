"""The HTTP front door in this process, before the same parts as the gRPC servers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import httpx2
import openai

from controlplane.config import ControlPlaneConfig
from controlplane.http.door import Behind, HttpDoor
from controlplane.registry import ModelInfo, ModelState
from tests.contract.controlplane.front_door import Door, default_models, front_door, text_model

VECTORS = "vectors"
CREATED_S = 1_700_000_000


def embedder(*, state: ModelState = ModelState.READY) -> ModelInfo:
    """A model of two-dimensional embeddings."""
    return replace(text_model(VECTORS, state=state), task="embedding", labels=())


@dataclass
class WebDoor:
    """A running HTTP server, a plain client of it, and everything behind it."""

    address: str
    client: httpx2.AsyncClient
    http: HttpDoor
    grpc: Door

    @property
    def base_url(self) -> str:
        """What OpenAI's clients are pointed at."""
        return f"http://{self.address}/v1"

    def sdk(self, **options: Any) -> openai.AsyncOpenAI:
        """OpenAI's own client, which tries nothing twice unless told."""
        settings: dict[str, Any] = {"max_retries": 0, "timeout": 20.0, **options}
        return openai.AsyncOpenAI(base_url=self.base_url, api_key="unused", **settings)

    async def post(self, path: str, content: bytes, **headers: str) -> httpx2.Response:
        """POST raw bytes; header names are written with underscores."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.client.post(path, content=content, headers=named)


@asynccontextmanager
async def web_door(
    *, models: Iterable[ModelInfo] | None = None, config: ControlPlaneConfig | None = None
) -> AsyncIterator[WebDoor]:
    """Both front doors on free ports, with one worker's models in the registry."""
    chosen = replace(
        config or ControlPlaneConfig(), listen="127.0.0.1:0", http_listen="127.0.0.1:0"
    )
    served = [*default_models(), embedder()] if models is None else models
    async with front_door(models=served, config=chosen) as door:
        http = HttpDoor(
            chosen,
            Behind(
                intake=door.server.intake,
                catalogue=door.server.catalogue,
                registry=door.registry,
                now_ns=door.queue.now_ns,
                wall_ms=lambda: CREATED_S * 1000,
            ),
        )
        address = await http.start()
        try:
            async with httpx2.AsyncClient(base_url=f"http://{address}", timeout=20.0) as client:
                yield WebDoor(address, client, http, door)
        finally:
            await http.stop(1)


def error_of(response: httpx2.Response, status: int) -> dict[str, Any]:
    """The error of a response; fails when it is none, or of another status."""
    assert response.headers["content-type"] == "application/json"
    document = response.json()
    assert response.status_code == status, document
    assert set(document) == {"error"}
    assert set(document["error"]) == {"message", "type", "param", "code"}
    return dict(document["error"])


async def raw_post(
    address: str, path: str, body: bytes, *, length: int | None = None
) -> Connection:
    """Send a request over a socket of its own and leave the answer unread.

    `length` is what is said of the body's bytes when that is not true.
    """
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    said = len(body) if length is None else length
    lines = [f"POST {path} HTTP/1.1", f"host: {address}", f"content-length: {said}", "", ""]
    writer.write("\r\n".join(lines).encode() + body)
    await writer.drain()
    return Connection(reader, writer)


@dataclass
class Connection:
    """One socket of a caller."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def cut(self) -> None:
        """Go away without a word."""
        self.writer.transport.abort()
