"""A control plane without front doors, whose Fleet service listens in this process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import grpc
import psutil

from controlplane.config import ControlPlaneConfig
from controlplane.dispatcher import Dispatcher
from controlplane.generation.lanes import Lanes
from controlplane.generation.prompts import Prompts
from controlplane.generation.service import Generations
from controlplane.policy.records import Answer, Request, RequestClass
from controlplane.preprocess import Preprocessor
from controlplane.registry import Registry
from controlplane.rpc.describing import Describer, Waits
from controlplane.rpc.fleet import FleetServicer
from controlplane.rpc.fleet_status import StatusSource
from controlplane.rpc.services import service_handler
from controlplane.security.house import OPEN, Security
from protos.orchid.v1 import fleet_pb2, fleet_pb2_grpc
from tests.contract.controlplane.fake_worker import FakeWorker, Membership, serving, until

SERVICE = fleet_pb2.DESCRIPTOR.services_by_name["Fleet"]


@dataclass
class Plane:
    """A control plane without front doors."""

    registry: Registry
    dispatcher: Dispatcher
    preprocessor: Preprocessor
    fleet: FleetServicer
    channel: grpc.aio.Channel

    @asynccontextmanager
    async def member(self, worker: FakeWorker) -> AsyncIterator[Membership]:
        """A worker that has registered and is attached."""
        async with serving(worker) as address:
            membership = Membership(worker, address, self.channel)
            assert (await membership.hello()).HasField("welcome")
            await until(lambda: self._ready(worker), f"{worker.name} is ready")
            yield membership
            membership.call.cancel()
            await until(lambda: not self._ready(worker), f"{worker.name} left")

    async def ask(self, text: str = "good film", deadline_ms: int = 5000) -> Answer:
        info = self.registry.model("tiny")
        now = self.dispatcher.now_ns()
        payload, shapes = await self.preprocessor.tokenize(info, [text])
        return await self.dispatcher.submit(
            Request(
                id=self.dispatcher.next_id(),
                model="tiny",
                klass=RequestClass(),
                shapes=shapes,
                payload=payload,
                arrived_ns=now,
                deadline_ns=now + deadline_ms * 1_000_000,
            )
        )

    async def status(self) -> fleet_pb2.GetStatusResponse:
        stub: fleet_pb2_grpc.FleetAsyncStub = fleet_pb2_grpc.FleetStub(self.channel)
        return await stub.GetStatus(fleet_pb2.GetStatusRequest())

    def _ready(self, worker: FakeWorker) -> bool:
        session = self.registry.session_of(worker.name)
        return session is not None and session.state.value == "ready"


@asynccontextmanager
async def running(security: Security = OPEN, waits: Waits | None = None) -> AsyncIterator[Plane]:
    # The fake workers report only when a test says so, and shall not be suspected for it.
    config = ControlPlaneConfig(report_interval_ms=10_000)
    now_ns = time.monotonic_ns
    registry = Registry()
    dispatcher = Dispatcher(config, registry, now_ns=now_ns, loop=asyncio.get_running_loop())
    preprocessor = Preprocessor(registry, threads=1, max_queued=4, now_ns=now_ns)
    source = StatusSource("cp", "1.2.3", now_ns(), preprocessor, psutil.Process())
    lanes = Lanes(
        registry,
        now_ns=now_ns,
        loop=asyncio.get_running_loop(),
        report_interval_ms=config.report_interval_ms,
    )
    generations = Generations(config, registry, lanes, Prompts(preprocessor), now_ns=now_ns)
    fleet = FleetServicer(
        config,
        registry,
        dispatcher,
        generations,
        status=source,
        now_ns=now_ns,
        describer=Describer(registry, preprocessor, waits),
    )
    server = grpc.aio.server()
    server.add_generic_rpc_handlers([service_handler(SERVICE, fleet, security)])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield Plane(registry, dispatcher, preprocessor, fleet, channel)
    dispatcher.close()
    generations.close()
    fleet.close()
    await server.stop(2.0)
    preprocessor.close()
