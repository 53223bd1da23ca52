"""The HTTP front door in this process, before the same parts as the gRPC servers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import httpx2
import openai

from controlplane.config import ControlPlaneConfig
from controlplane.generation.service import Generations
from controlplane.http.door import Behind, HttpDoor
from controlplane.registry import ModelInfo, ModelState, Registry
from controlplane.rpc.server import ControlPlaneServer
from controlplane.security.house import OPEN, Security
from controlplane.telemetry.telemetry import Telemetry
from tests.contract.controlplane.decode_worker import DecodeWorker, Writers, writers
from tests.contract.controlplane.front_door import Door, default_models, front_door, text_model

VECTORS = "vectors"
CREATED_S = 1_700_000_000
# Longer than any machine that runs tests stands still.
PATIENCE_S = 150.0


def embedder(*, state: ModelState = ModelState.READY) -> ModelInfo:
    """A model of two-dimensional embeddings."""
    return replace(text_model(VECTORS, state=state), task="embedding", labels=())


class Web:
    """A running HTTP server and clients of it."""

    def __init__(self, address: str, client: httpx2.AsyncClient, http: HttpDoor) -> None:
        self.address = address
        self.client = client
        self.http = http

    @property
    def base_url(self) -> str:
        """What OpenAI's clients are pointed at."""
        return f"http://{self.address}/v1"

    def sdk(self, **options: Any) -> openai.AsyncOpenAI:
        """OpenAI's own client, which tries nothing twice unless told."""
        settings: dict[str, Any] = {"max_retries": 0, "timeout": PATIENCE_S, **options}
        return openai.AsyncOpenAI(base_url=self.base_url, api_key="unused", **settings)

    async def post(self, path: str, content: bytes, **headers: str) -> httpx2.Response:
        """POST raw bytes; header names are written with underscores."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.client.post(path, content=content, headers=named)


class WebDoor(Web):
    """The HTTP server before a queue in memory."""

    grpc: Door


class WebWriters(Web):
    """The HTTP server before decode workers that generate by script."""

    house: Writers


@asynccontextmanager
async def web_door(
    *,
    models: Iterable[ModelInfo] | None = None,
    config: ControlPlaneConfig | None = None,
    telemetry: Telemetry | None = None,
    security: Security = OPEN,
    **client: Any,
) -> AsyncIterator[WebDoor]:
    """Both front doors on free ports, with one worker's models in the registry."""
    chosen = replace(config or ControlPlaneConfig(), listen="127.0.0.1:0")
    served = [*default_models(), embedder()] if models is None else models
    async with (
        front_door(models=served, config=chosen, telemetry=telemetry) as door,
        _served(
            WebDoor,
            chosen,
            door.server,
            door.registry,
            door.generations,
            security=security,
            **client,
        ) as web,
    ):
        web.grpc = door
        yield web


@asynccontextmanager
async def web_writers(*workers: DecodeWorker, **config: Any) -> AsyncIterator[WebWriters]:
    """A control plane with all of its doors, and these decode workers."""
    async with (
        writers(*workers, **config) as house,
        _served(WebWriters, house.config, house.server, house.registry, house.generations) as web,
    ):
        web.house = house
        yield web


W = TypeVar("W", bound=Web)


@asynccontextmanager
async def _served(
    kind: type[W],
    config: ControlPlaneConfig,
    server: ControlPlaneServer,
    registry: Registry,
    generations: Generations,
    *,
    security: Security = OPEN,
    **client: Any,
) -> AsyncIterator[W]:
    http = HttpDoor(
        replace(config, http_listen="127.0.0.1:0"),
        Behind(
            intake=server.intake,
            generating=generations,
            catalogue=server.catalogue,
            registry=registry,
            repository=server.repository,
            version=server.version,
            now_ns=time.monotonic_ns,
            wall_ms=lambda: CREATED_S * 1000,
            security=security,
        ),
    )
    address = await http.start()
    try:
        scheme = "https" if security.certificates is not None else "http"
        base = f"{scheme}://{address}"
        async with httpx2.AsyncClient(base_url=base, timeout=PATIENCE_S, **client) as caller:
            yield kind(address, caller, http)
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


def told(response: httpx2.Response, status: int) -> str:
    """Why the Open Inference Protocol has no answer; fails when it has, or of another status."""
    assert response.headers["content-type"] == "application/json"
    document = response.json()
    assert response.status_code == status, document
    assert set(document) == {"error"}
    error = document["error"]
    assert isinstance(error, str)
    return error


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
