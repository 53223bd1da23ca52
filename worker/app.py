"""One worker, put together: its service, server and membership."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Coroutine, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from protos.audit import Audit
from protos.measures import Reading
from protos.orchid.v1 import common_pb2
from protos.tls import listener_context, listener_credentials
from worker import engine
from worker.changes import Changes
from worker.config import WorkerConfig
from worker.errors import WorkerError
from worker.metrics import families
from worker.metrics.readings import of_memory, of_process
from worker.refusals import NotFound
from worker.rpc import convert
from worker.rpc.drain import DrainReport
from worker.rpc.fleet_client import FleetClient
from worker.rpc.server import WorkerServer, advertised
from worker.security import make_callers, make_certificates
from worker.services import DecodeService, EncoderService, Means, Service, Surroundings

if TYPE_CHECKING:
    from protos.exposition import Exposition

log = logging.getLogger(__name__)

# Calls that are under way when the server stops have this long to end.
_STOP_GRACE_S = 1.0

# The memory ledger is read so often, and no sooner again when models change.
_MEMORY_S = 60.0
_MEMORY_AGAIN_S = 1.0

# Threads that wait busily stop after two milliseconds without work: long enough from one step to
# the next, short enough to leave an idle worker's cores alone; see docs/decisions/0043.
_BOUNDED_SPINNING = {"session.intra_op.spin_duration_us": "2000"}


class WorkerApp:
    """A whole worker on the running event loop: `start`, `wait`, `stop`."""

    def __init__(self, config: WorkerConfig, means: Means) -> None:
        self._config = config
        self._means = means
        self._worker_id = config.own_id
        self._loop = asyncio.get_running_loop()
        self._changes = Changes()
        self._exit = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        make = DecodeService if config.worker_class == "decode" else EncoderService
        self.service: Service = make(
            Surroundings(
                config=config,
                means=means,
                worker_id=self._worker_id,
                changes=self._changes,
                open_session=self._open_session,
                exit_process=self._exit.set,
                loop=self._loop,
            )
        )
        self.host = self.service.host

        def wall_s() -> float:
            return means.wall_ns() / 1e9

        self._certificates = make_certificates(config, wall_s)
        # Where metrics are served, once they are.
        self.metrics_address = ""
        self._version = _own_version()
        self._exposition: Exposition | None = None
        if config.metrics_listen or config.metrics_push_ms:
            self._exposition = self._make_exposition()
        self._audit = Audit(
            config.audit, process="worker", wall_s=wall_s, now_ns=means.clocks.now_ns
        )
        self._server = WorkerServer(
            self.service.servicer,
            listen=config.listen,
            max_message_bytes=config.max_message_bytes,
            credentials=listener_credentials(self._certificates),
            callers=make_callers(config, self._audit),
            health_listen=config.health_listen,
        )

    async def start(self) -> str:
        """Serves, registers, and begins to load; returns the bound address at once.

        Raises NotFound when the configuration names a model that the repository has not,
        OSError when the address is taken.
        """
        names = self._configured_models()
        self.service.start()
        if self._exposition is not None:
            self.metrics_address = await asyncio.to_thread(self._exposition.start)
            if self.metrics_address:
                log.info("serving metrics on %s", self.metrics_address)
        if not self._config.tls.serves:
            # Who asks for encryption and names asks for them on this machine, too.
            await self.service.servicer.listen_locally()
        address = await self._server.start()
        self._spawn(self._publish_health())
        self._spawn(self._sample_load())
        self._spawn(self._read_memory())
        self._spawn(self._load_models(names))
        if self._config.controlplane:
            self._spawn(self._fleet_client(self._config.advertise or advertised(address)).run())
        log.info("listening on %s, loading %s", address, ", ".join(names) or "nothing")
        return address

    @property
    def health_address(self) -> str:
        """Where probes are answered, once they are; empty where that was not asked for."""
        return self._server.health_address

    async def wait(self) -> None:
        """Returns when a Drain call has asked the process to end."""
        await self._exit.wait()

    async def drain(self, timeout_s: float | None) -> DrainReport:
        """Refuses new work and returns when the old is answered; see `Drainer.drain`."""
        return await self.service.drainer.drain(timeout_s)

    async def stop(self) -> None:
        """Ends every call and every thread; work that is left is answered as unavailable."""
        self.service.servicer.close_streams()
        await self._server.stop(_STOP_GRACE_S)
        await self.service.servicer.end_streams(_STOP_GRACE_S)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.service.stop()
        if self._exposition is not None:
            await asyncio.to_thread(self._exposition.stop)
        self._means.tracing.close()
        self._audit.close()

    def _make_exposition(self) -> Exposition:
        # Loaded only where somebody looks.
        from protos.exposition import Clocks, Exposition, Outlets

        config, means = self._config, self._means
        return Exposition(
            Outlets(
                config.metrics_listen,
                config.otlp_endpoint if config.metrics_push_ms else "",
                config.metrics_push_ms,
                listener_context(self._certificates),
            ),
            lambda: [*self._measured()],
            resource={
                "service.name": "orchid-worker",
                "service.version": self._version,
                "service.instance.id": self._worker_id,
            },
            loop=self._loop,
            clocks=Clocks(means.clocks.now_ns, means.wall_ns),
        )

    def _measured(self) -> Iterator[Reading]:
        means, info = self._means, engine.runtime_info()
        yield from self.service.measured()
        yield from of_memory(self.service.ledger.latest)
        yield from of_process(self.host.describe(), means.meter.latest, means.throttling())
        labels = (self._config.worker_class, info.library_version, info.simd)
        yield Reading(families.BUILD, ("worker", self._version, *labels), 1)

    def _configured_models(self) -> tuple[str, ...]:
        available = self.host.available_models()
        for name in self._config.models:
            if name not in available:
                there = ", ".join(available) or "none"
                raise NotFound(
                    f"unknown model {name!r}; {self._config.repository} has {there}: "
                    "run `orchid models build`, or name another repository"
                )
        return self._config.models or tuple(filter(self.host.serves, available))

    async def _load_models(self, names: tuple[str, ...]) -> None:
        for name in names:
            try:
                await asyncio.to_thread(self.host.load, name)
            except WorkerError as error:
                # The host keeps the failure for Describe; other models are not held up by it.
                log.error("model=%s not ready: %s", name, error)

    async def _publish_health(self) -> None:
        seen = -1
        while True:
            seen = await self._changes.wait(seen)
            draining = self.service.drainer.draining
            await self._server.show_health(self.host.describe(), draining=draining)

    async def _sample_load(self) -> None:
        while True:
            self._means.meter.sample()
            await asyncio.sleep(self._config.report_interval_ms / 1e3)

    async def _read_memory(self) -> None:
        """Keeps the ledger fresh: the kernel's tables take milliseconds, so on a thread."""
        seen = -1
        while True:
            seen = await self._changes.wait(seen, _MEMORY_S)
            try:
                await asyncio.to_thread(self.service.ledger.refresh)
            except OSError as error:
                log.warning("the memory ledger cannot be read: %s", error)
                return
            await asyncio.sleep(_MEMORY_AGAIN_S)

    def _fleet_client(self, address: str) -> FleetClient:
        info = engine.runtime_info()
        return FleetClient(
            controlplane=self._config.controlplane,
            hello=convert.hello_to(
                worker_id=self._worker_id,
                address=address,
                worker_class=self._config.worker_class,
                threads=self._config.intra_op_threads,
                # Virtual machines hide the model: the class tells unlike CPUs of one name apart.
                cpu_model=f"{info.cpu_model} ({engine.machine_class()})",
                simd=info.simd,
                engine_version=info.library_version,
                process_id=os.getpid(),
            ),
            load=self.service.load,
            untold_s=self.service.untold_s,
            models=self._models,
            changes=self._changes,
            report_interval_s=self._config.report_interval_ms / 1e3,
            generator=self._means.generator,
            max_message_bytes=self._config.max_message_bytes,
            welcomed=self.service.servicer.welcomed,
            certificates=self._certificates,
            token_file=self._config.token_file,
            memory=lambda: self.service.ledger.latest,
        )

    def _models(self) -> list[common_pb2.ModelDescription]:
        return [
            *(convert.model_to(snapshot) for snapshot in self.host.describe()),
            *(convert.unreadable_to(*each) for each in self.host.unreadable().items()),
        ]

    def _open_session(self, graph: Path) -> engine.Session:
        session = engine.Session(
            graph,
            intra_op_threads=self._config.intra_op_threads,
            spinning=self._config.spins,
            config=_BOUNDED_SPINNING if self._config.worker_class == "decode" else None,
        )
        if session.sharing_note:
            log.warning("%s holds weights of its own: %s", graph.name, session.sharing_note)
        return session

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(self._loop.create_task(work))


def _own_version() -> str:
    try:
        return version("orchid")
    except PackageNotFoundError:
        return "unknown"
