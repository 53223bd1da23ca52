"""The HTTP front door, put together: what stands behind it, and its life."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass

from controlplane.config import ControlPlaneConfig
from controlplane.http.app import Handlers, application
from controlplane.http.calls import Settings
from controlplane.http.chat import Chat
from controlplane.http.completions import Completions
from controlplane.http.embeddings import Embeddings
from controlplane.http.generation import Generating
from controlplane.http.large_bodies import LargeBodies
from controlplane.http.models import Models
from controlplane.http.oip import Inference
from controlplane.http.oip_models import InferenceModels
from controlplane.http.protocol import Bounds
from controlplane.http.server import HttpServer
from controlplane.http.tokens import Tokens
from controlplane.registry import Registry
from controlplane.rpc.catalogue import Catalogue
from controlplane.rpc.intake import Intake
from controlplane.rpc.oip import Repository
from controlplane.security.house import OPEN, Security
from protos.tls import listener_context


@dataclass(frozen=True, slots=True)
class Behind:
    """What the front door stands in front of; all of it belongs to one event loop."""

    intake: Intake
    generating: Generating
    catalogue: Catalogue
    registry: Registry
    repository: Repository
    version: str
    now_ns: Callable[[], int]
    wall_ms: Callable[[], int]
    security: Security = OPEN


class HttpDoor:
    """Serves OpenAI's API and the Open Inference Protocol at `http_listen`.

    Call everything on the event loop.
    """

    def __init__(self, config: ControlPlaneConfig, behind: Behind) -> None:
        settings = Settings(
            max_body=config.max_message_bytes,
            body_timeout_s=config.deadline_cap_ms / 1000,
            now_ns=behind.now_ns,
            wall_s=lambda: behind.wall_ms() // 1000,
            new_id=lambda: uuid.uuid4().hex,
            guard=behind.security.guard,
            telemetry=behind.intake.telemetry,
        )
        self._bodies = LargeBodies(behind.now_ns)
        self._models = Models(behind.catalogue, behind.registry, settings.wall_s())
        handlers = Handlers(
            models=self._models,
            embeddings=Embeddings(config, behind.intake, behind.catalogue, self._bodies),
            completions=Completions(config, behind.generating, behind.catalogue),
            chat=Chat(config, behind.generating, behind.catalogue),
            tokens=Tokens(behind.generating, behind.catalogue),
            inference=Inference(behind.intake, behind.catalogue, self._bodies),
            served=InferenceModels(
                behind.catalogue,
                behind.registry,
                behind.repository,
                version=behind.version,
                ready=self._models.ready,
                audit=behind.security.audit,
            ),
        )
        self._server = HttpServer(
            application(settings, handlers),
            config.http_listen,
            bounds=Bounds(config.http_max_connections, config.http_head_timeout_ms / 1000),
            context=listener_context(behind.security.certificates),
        )

    async def start(self) -> str:
        """Serve; returns the bound address. Raises OSError when it cannot be bound."""
        return await self._server.start()

    async def stop(self, grace_s: float) -> None:
        """Refuse new connections, let calls end for up to `grace_s`, then cancel them."""
        self._models.drain()
        await self._server.stop(grace_s)
        self._bodies.close()
