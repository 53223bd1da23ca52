"""grpc health, answered from the registry: per model, per service, and overall."""

from __future__ import annotations

import asyncio

from grpc_health.v1 import health_pb2

from controlplane.errors import NotFound
from controlplane.registry import Registry
from controlplane.rpc.services import Context
from controlplane.rpc.status import listed, shown

# How stale a watcher's knowledge may be; only calls that watch pay for it.
WATCH_INTERVAL_S = 0.1

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


class HealthServicer:
    """Implements `grpc.health.v1.Health`.

    A model's name asks whether that model can be asked now; "" and the names in
    `services` whether any can; those in `always` need no model. After `drain` everything
    is NOT_SERVING.
    """

    def __init__(
        self, registry: Registry, services: frozenset[str], always: frozenset[str]
    ) -> None:
        self._registry = registry
        self._services = services | {""}
        self._always = always
        self._draining = False

    def drain(self) -> None:
        """The process is going down: send callers elsewhere."""
        self._draining = True

    async def Check(
        self, request: health_pb2.HealthCheckRequest, context: Context
    ) -> health_pb2.HealthCheckResponse:
        """The status now; NOT_FOUND names what can be asked about."""
        status = self.status(request.service)
        if status == UNKNOWN:
            names = (
                self._services | self._always | {model.name for model in self._registry.models()}
            )
            raise NotFound(f"no service {shown(request.service)} here; services: {listed(names)}")
        return health_pb2.HealthCheckResponse(status=status)

    async def Watch(self, request: health_pb2.HealthCheckRequest, context: Context) -> None:
        """The status now, and again whenever it changes, until the process drains."""
        last = None
        while True:
            # Asked before the status: it may change while the status is being written.
            draining = self._draining
            status = self.status(request.service)
            if status != last:
                await context.write(health_pb2.HealthCheckResponse(status=status))
                last = status
            if draining:
                return
            await asyncio.sleep(WATCH_INTERVAL_S)

    def status(self, service: str) -> health_pb2.HealthCheckResponse.ServingStatus:
        """Serving status of a service or model; UNKNOWN when there is none of that name."""
        models = self._registry.models()
        if service in self._services:
            ready = any(model.ready for model in models)
        elif service in self._always:
            ready = True
        else:
            named = [model for model in models if model.name == service]
            if not named:
                return UNKNOWN
            ready = named[0].ready
        return SERVING if ready and not self._draining else NOT_SERVING
