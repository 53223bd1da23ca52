"""The worker's gRPC server: the service itself, health for each model, and reflection."""

from __future__ import annotations

import socket
from collections.abc import Iterable

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from protos.binding import bind
from protos.dialling import SERVICES_KEEPALIVE
from protos.probes import ProbePort
from worker.hosted import ModelSnapshot, ModelState
from worker.rpc.handlers import SERVICE, worker_handler
from worker.rpc.servicer import WorkerServicer
from worker.security import Callers

_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
_WILDCARDS = ("0.0.0.0", "[::]")


class WorkerServer:
    """Serves one `WorkerServicer` at one address."""

    def __init__(
        self,
        servicer: WorkerServicer,
        *,
        listen: str,
        max_message_bytes: int,
        credentials: grpc.ServerCredentials | None = None,
        callers: Callers | None = None,
        health_listen: str = "",
    ) -> None:
        self._listen = listen
        self._credentials = credentials
        self._server = grpc.aio.server(
            options=(
                ("grpc.max_receive_message_length", max_message_bytes),
                ("grpc.max_send_message_length", max_message_bytes),
                # Two workers on one port would share its connections at random.
                ("grpc.so_reuseport", 0),
                # The control plane's keepalive pings would otherwise count as abuse on an
                # Execute stream that has been idle for some minutes, and cost the connection.
                ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
                *SERVICES_KEEPALIVE,
            )
        )
        self._server.add_generic_rpc_handlers([worker_handler(servicer, callers)])
        self._health = health.aio.HealthServicer()
        self._models: set[str] = set()
        # The same health, as probes are told it.
        self._shown: dict[str, int] = {}
        self._probes: ProbePort | None = None
        if health_listen:
            self._probes = ProbePort(health_listen, lambda name: self._shown.get(name, _UNKNOWN))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        names = (SERVICE.full_name, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self._server)

    @property
    def health_address(self) -> str:
        """Where probes are answered, once they are; empty where that was not asked for."""
        return "" if self._probes is None else self._probes.address

    async def start(self) -> str:
        """Binds and serves; returns the address that was bound. Raises OSError when it is taken."""
        await self.show_health((), draining=False)
        address = bind(self._server, self._listen, self._credentials)
        if self._probes is not None:
            await self._probes.start()
        await self._server.start()
        return address

    async def show_health(self, models: Iterable[ModelSnapshot], *, draining: bool) -> None:
        """Publishes health.

        A model serves when it is ready; "" serves when at least one model can be asked now;
        the service itself serves until it drains.
        """
        ready = {
            model.manifest.name: not draining
            and model.state is not ModelState.UNLOADING
            and any(variant.ready for variant in model.variants)
            for model in models
        }
        for gone in self._models - ready.keys():
            await self._show(gone, _UNKNOWN)
        self._models |= ready.keys()
        for name, serves in ready.items():
            await self._show(name, _SERVING if serves else _NOT_SERVING)
        await self._show(SERVICE.full_name, _NOT_SERVING if draining else _SERVING)
        await self._show("", _SERVING if any(ready.values()) else _NOT_SERVING)

    async def stop(self, grace_s: float) -> None:
        """Stops taking calls; those under way have `grace_s` to end."""
        await self._health.enter_graceful_shutdown()
        self._shown = dict.fromkeys(self._shown, _NOT_SERVING)
        await self._server.stop(grace_s)
        if self._probes is not None:
            await self._probes.stop()

    async def _show(self, service: str, status: int) -> None:
        self._shown[service] = status
        await self._health.set(service, status)


def advertised(address: str) -> str:
    """The address others can dial: a wildcard becomes this host's name."""
    host, _, port = address.rpartition(":")
    return f"{socket.gethostname()}:{port}" if host in _WILDCARDS else address
