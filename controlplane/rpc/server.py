"""The control plane's gRPC server: every service on one port, with one message limit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import grpc
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

from controlplane.config import ControlPlaneConfig
from controlplane.generation.plan import Plan
from controlplane.generation.progress import Progress
from controlplane.generation.service import Generations, Listener
from controlplane.registry import Registry
from controlplane.rpc.catalogue import Catalogue
from controlplane.rpc.fleet import FleetServicer
from controlplane.rpc.guarding import ProtectedHandler
from controlplane.rpc.health import HealthServicer
from controlplane.rpc.intake import Intake, Queue, Tokenizing
from controlplane.rpc.native import NativeServicer
from controlplane.rpc.oip import OipServicer, Repository
from controlplane.rpc.services import service_handler
from controlplane.rpc.statistics import Statistics
from controlplane.rpc.streams import OpenStreams
from controlplane.rpc.traced import TracedHandlers, UnknownMethods
from controlplane.security.guard import Guard
from controlplane.security.house import OPEN, Security
from controlplane.telemetry.telemetry import Telemetry
from protos.binding import bind
from protos.dialling import keepalive
from protos.inference import oip_pb2
from protos.orchid.v1 import fleet_pb2, inference_pb2
from protos.probes import ProbePort
from protos.tls import listener_credentials

OIP = oip_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"]
NATIVE = inference_pb2.DESCRIPTOR.services_by_name["Inference"]
FLEET = fleet_pb2.DESCRIPTOR.services_by_name["Fleet"]
HEALTH = health_pb2.DESCRIPTOR.services_by_name["Health"]

# A peer that vanished without closing its connection is noticed within the sum of these.
_KEEPALIVE_MS = 30_000
_KEEPALIVE_TIMEOUT_MS = 10_000
_PING_INTERVAL_MS = 5_000
_WINDOW_BYTES = 1 << 20
# So long a connection may take until it is one, and stand without a call.
_HANDSHAKE_MS = 20_000
_IDLE_MS = 15 * 60_000
_PING_STRIKES = 2


@dataclass(frozen=True, slots=True)
class Parts:
    """What the front doors stand in front of. `telemetry` None records no call."""

    queue: Queue
    tokenizing: Tokenizing
    generations: Generations
    registry: Registry
    repository: Repository
    fleet: FleetServicer | None
    version: str
    wall_ms: Callable[[], int]
    telemetry: Telemetry | None = None


class ControlPlaneServer:
    """Owns the server's life; call everything on one event loop."""

    def __init__(self, config: ControlPlaneConfig, parts: Parts, security: Security = OPEN) -> None:
        self._config = config
        self._credentials = listener_credentials(security.certificates)
        self._server = grpc.aio.server(options=_options(config))
        # For the HTTP door, which has the same behind it.
        self.repository, self.version = parts.repository, parts.version
        intake = self.intake = Intake(config, parts.queue, parts.tokenizing, parts.telemetry)
        statistics = Statistics(parts.wall_ms)
        catalogue = self.catalogue = Catalogue(parts.registry, statistics)
        parts.generations.listener = _counting(statistics)
        self._streams = OpenStreams(intake)
        oip = OipServicer(
            intake, self._streams, catalogue, parts.registry, parts.repository, parts.version
        )
        self._health = HealthServicer(
            parts.registry,
            services=frozenset((OIP.full_name, NATIVE.full_name)),
            # Workers must be able to join before there is a model.
            always=frozenset((FLEET.full_name,)),
        )
        self._probes: ProbePort | None = None
        if config.health_listen:
            self._probes = ProbePort(config.health_listen, self._health.status)
        native = NativeServicer(intake, self._streams, catalogue, parts.generations)
        doors = {
            OIP: service_handler(OIP, oip, security),
            NATIVE: service_handler(NATIVE, native, security),
        }
        telemetry, now_ns = intake.telemetry, parts.queue.now_ns
        if telemetry is not None:
            for service, door in doors.items():
                doors[service] = TracedHandlers(service, door, telemetry, now_ns)
        handlers = [*doors.values(), service_handler(HEALTH, self._health)]
        names = [OIP.full_name, NATIVE.full_name, HEALTH.full_name, reflection.SERVICE_NAME]
        adapter = cast(grpc.aio.Server, _GenericOnly(handlers, security.guard))
        if parts.fleet is not None:
            handlers.append(service_handler(FLEET, parts.fleet, security))
            names.append(FLEET.full_name)
        reflection_pb2_grpc.add_ServerReflectionServicer_to_server(
            reflection.aio.ReflectionServicer(names), adapter
        )
        if telemetry is not None:
            handlers.append(UnknownMethods(telemetry, now_ns))
        self._server.add_generic_rpc_handlers(handlers)

    @property
    def health_address(self) -> str:
        """Where probes are answered, once they are; empty where that was not asked for."""
        return "" if self._probes is None else self._probes.address

    async def start(self) -> str:
        """Bind and serve; returns the address with the port that was given.

        Raises OSError when an address cannot be bound.
        """
        address = bind(self._server, self._config.listen, self._credentials)
        if self._probes is not None:
            await self._probes.start()
        await self._server.start()
        return address

    async def stop(self, grace_s: float) -> None:
        """Refuse new calls, let running ones end for up to `grace_s`, then cancel them.

        Streams of requests end by themselves once what they have in flight is answered;
        whoever holds a Register stream must end it.
        """
        self._health.drain()
        self._streams.drain()
        await self._server.stop(grace_s)
        if self._probes is not None:
            await self._probes.stop()


def _counting(statistics: Statistics) -> Listener:
    """Counts generations of every front door as requests of their model are counted."""

    def count(plan: Plan, progress: Progress, took_ns: int, error: BaseException | None) -> None:
        counters = statistics.counters(plan.model.name, plan.model.version)
        if error is not None or progress.usage is None:
            counters.failed(took_ns)
        else:
            counters.generated(
                plan.ask.limits.n, progress.usage.queue_ns, progress.first_token_ns, took_ns
            )

    return count


class _GenericOnly:
    """Collects the handlers of generated `add_..._to_server` functions.

    It leaves out their registered form: grpc.aio waits on a future for each registered
    method at every call.
    """

    def __init__(self, handlers: list[grpc.GenericRpcHandler], guard: Guard | None) -> None:
        self._handlers = handlers
        self._guard = guard

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        guard = self._guard
        self._handlers.extend(
            each if guard is None else ProtectedHandler(each, guard) for each in handlers
        )

    def add_registered_method_handlers(self, service: str, handlers: Any) -> None:
        pass


def _options(config: ControlPlaneConfig) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", config.max_message_bytes),
        ("grpc.max_send_message_length", config.max_message_bytes),
        # Two control planes on one port would split the callers between them.
        ("grpc.so_reuseport", 0),
        *keepalive(_KEEPALIVE_MS, _KEEPALIVE_TIMEOUT_MS),
        # Callers that keep an idle stream alive with pings are welcome.
        ("grpc.http2.min_ping_interval_without_data_ms", _PING_INTERVAL_MS),
        ("grpc.http2.max_ping_strikes", _PING_STRIKES),
        ("grpc.max_concurrent_streams", config.max_concurrent_streams),
        ("grpc.max_metadata_size", config.max_metadata_bytes),
        ("grpc.absolute_max_metadata_size", config.max_metadata_bytes),
        ("grpc.server_handshake_timeout_ms", _HANDSHAKE_MS),
        ("grpc.max_connection_idle_ms", _IDLE_MS),
        # A fixed window costs small calls less CPU than probing for the bandwidth.
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.lookahead_bytes", _WINDOW_BYTES),
    ]
