"""Composition root of the control plane: clocks are made here and everything is put together."""

from __future__ import annotations

import asyncio
import logging
import os
import time
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from controlplane.config import ControlPlaneConfig
from controlplane.dispatcher import Dispatcher
from controlplane.generation.lanes import Lanes
from controlplane.generation.prompts import Prompts
from controlplane.generation.service import Generations
from controlplane.lag import LoopLag
from controlplane.measures import Callers
from controlplane.metrics.exposing import make_exposition
from controlplane.metrics.source import MetricsSource
from controlplane.preprocess import Preprocessor
from controlplane.registry import Registry
from controlplane.reload import Reloads
from controlplane.rpc.fleet import FleetServicer
from controlplane.rpc.fleet_status import StatusSource
from controlplane.rpc.repository import FleetRepository
from controlplane.rpc.server import ControlPlaneServer, Parts
from controlplane.security.house import Security
from controlplane.telemetry.telemetry import Telemetry
from controlplane.version import own_version
from protos.tls import listener_context
from protos.tracing.export import Destinations, open_sink

if TYPE_CHECKING:
    from controlplane.http.door import HttpDoor
    from controlplane.page.door import PageDoor
    from controlplane.records.keeping import Records

log = logging.getLogger("controlplane")

# How often a shutdown looks whether the last request has ended.
_DRAIN_LOOK_S = 0.01
_FAREWELL_S = 1.0
# Workers that lost a control plane try again after 2.6 s at most, and then tell what they have.
_GATHERING_S = 4.0


class ControlPlane:
    """One control plane, from its parts to the end of its last request."""

    def __init__(
        self,
        config: ControlPlaneConfig,
        loop: asyncio.AbstractEventLoop,
        security: Security,
        read: Callable[[], ControlPlaneConfig] | None = None,
    ) -> None:
        now_ns = time.monotonic_ns
        self._config = config
        self._security = security
        self._telemetry = make_telemetry(config)
        registry = self._registry = Registry()
        registry.gathering = True
        self._preprocessor = Preprocessor(
            registry,
            threads=config.preprocess_threads,
            max_queued=config.preprocess_queue,
            now_ns=now_ns,
        )
        callers = Callers(config.classes, config.tenants.named)
        self._records = self._make_records(registry, loop) if config.records.file else None
        self._dispatcher = Dispatcher(
            config,
            registry,
            now_ns=now_ns,
            loop=loop,
            telemetry=self._telemetry,
            callers=callers,
            records=None if self._records is None else self._records.requests,
        )
        self._generations = Generations(
            config,
            registry,
            Lanes(registry, now_ns=now_ns, loop=loop, report_interval_ms=config.report_interval_ms),
            Prompts(self._preprocessor),
            now_ns=now_ns,
            telemetry=self._telemetry,
            callers=callers,
            records=None if self._records is None else self._records.generations,
        )
        self._telemetry.optional_work_allowed = self._dispatcher.optional_work_allowed
        self._lag = LoopLag(loop, now_ns, partial(_lags, self._dispatcher, self._generations))
        # Holds nothing of this object, which then goes as soon as it cannot start.
        self.reloads = Reloads(config, read, partial(_take, self._dispatcher, self._generations))
        _take(self._dispatcher, self._generations, config)
        status = StatusSource(
            controlplane_id=f"controlplane-{os.getpid()}-{uuid.uuid4().hex[:8]}",
            version=own_version(),
            started_ns=now_ns(),
            preprocessor=self._preprocessor,
            process=psutil.Process(),
            reloads=self.reloads,
        )
        self._fleet = FleetServicer(
            config,
            registry,
            self._dispatcher,
            self._generations,
            status=status,
            now_ns=now_ns,
            certificates=security.certificates,
        )
        self._server = ControlPlaneServer(
            config,
            Parts(
                queue=self._dispatcher,
                tokenizing=self._preprocessor,
                generations=self._generations,
                registry=registry,
                repository=FleetRepository(self._fleet),
                fleet=self._fleet,
                version=status.version,
                wall_ms=_wall_ms,
                telemetry=self._telemetry,
            ),
            security,
        )
        self._http = self._http_door(registry) if config.http_listen else None
        self.metrics_address = ""
        self._exposition = make_exposition(
            config,
            MetricsSource(
                self._dispatcher,
                self._generations,
                registry,
                self._preprocessor,
                service="controlplane",
                version=status.version,
                store=None if self._records is None else self._records.store,
            ),
            status.controlplane_id,
            loop=loop,
            context=listener_context(security.certificates),
            now_ns=now_ns,
            wall_ns=time.time_ns,
        )
        self.page_url = ""
        self._page: PageDoor | None = None
        if config.status_listen:
            self._page = self._page_door(registry, status, loop)

    def _make_records(self, registry: Registry, loop: asyncio.AbstractEventLoop) -> Records:
        from controlplane.records.keeping import Records

        return Records(
            self._config.records,
            registry,
            now_ns=time.monotonic_ns,
            wall_offset_ns=self._telemetry.wall_offset_ns,
            loop=loop,
        )

    def _http_door(self, registry: Registry) -> HttpDoor:
        try:
            from controlplane.http.door import Behind, HttpDoor
        except ModuleNotFoundError as error:
            raise MissingExtra("http_listen", error) from None
        return HttpDoor(
            self._config,
            Behind(
                intake=self._server.intake,
                generating=self._generations,
                catalogue=self._server.catalogue,
                registry=registry,
                repository=self._server.repository,
                version=self._server.version,
                now_ns=time.monotonic_ns,
                wall_ms=_wall_ms,
                security=self._security,
            ),
        )

    def _page_door(
        self, registry: Registry, status: StatusSource, loop: asyncio.AbstractEventLoop
    ) -> PageDoor:
        try:
            from controlplane.page.door import PageDoor
            from controlplane.page.snapshot import Sources
        except ModuleNotFoundError as error:
            raise MissingExtra("status_listen", error) from None
        return PageDoor(
            self._config.status_listen,
            Sources(
                id=status.controlplane_id,
                version=status.version,
                started_ns=status.started_ns,
                registry=registry,
                dispatcher=self._dispatcher,
                generations=self._generations,
                preprocessing=self._preprocessor,
                slow=self._telemetry.slow,
            ),
            now_ns=time.monotonic_ns,
            wall_ms=_wall_ms,
            usage=lambda: _usage(status.process),
            loop=loop,
            security=self._security,
        )

    async def start(self) -> tuple[str, str]:
        """Serve; returns the bound addresses of gRPC and of HTTP, "" where that is not served.

        Raises OSError when one cannot be bound.
        """
        if self._exposition is not None:
            self.metrics_address = await asyncio.to_thread(self._exposition.start)
        if self._page is not None:
            self.page_url = await self._page.start()
        address = await self._server.start()
        if self._records is not None:
            self._records.start()
        self._lag.start()
        # A timer holds what it calls: this one no server, which would outlive a start that fails.
        asyncio.get_running_loop().call_later(_GATHERING_S, self._registry.gathered)
        return address, await self._http.start() if self._http is not None else ""

    async def stop(self) -> None:
        """Refuse new calls, finish what is in the house, then let the workers go."""
        self._lag.stop()
        grace_s = self._config.deadline_cap_ms / 1000
        # What outlasts the grace is told why before its call is cancelled.
        doors = [self._server.stop(grace_s + _FAREWELL_S)]
        if self._http is not None:
            doors.append(self._http.stop(grace_s + _FAREWELL_S))
        stopping = asyncio.gather(*doors)
        self._generations.drain()
        try:
            async with asyncio.timeout(grace_s):
                while True:
                    open_generations = self._generations.gauges()["generations"]
                    if not self._dispatcher.gauges()["pending"] and not open_generations:
                        break
                    await asyncio.sleep(_DRAIN_LOOK_S)
        except TimeoutError:
            log.warning("requests outlast the shutdown's %.0f s and are ended", grace_s)
        self._dispatcher.close()
        self._generations.close()
        if self._records is not None:
            await self._records.close()
        self._fleet.close()
        if self._page is not None:
            await self._page.stop()
        await stopping
        if self._exposition is not None:
            await asyncio.to_thread(self._exposition.stop)
        self._preprocessor.close()
        self._telemetry.close()
        if self._security.audit is not None:
            self._security.audit.close()


def _lags(dispatcher: Dispatcher, generations: Generations, lag_ns: float, next_ns: int) -> None:
    """Tell every overload ladder how late the event loop is, and when that is looked at again."""
    dispatcher.lags(lag_ns, next_ns)
    generations.overload.lags(lag_ns, next_ns)


def _take(dispatcher: Dispatcher, generations: Generations, config: ControlPlaneConfig) -> None:
    """Put in force what may change while the process runs; see `reload.RELOADED`."""
    dispatcher.set_tenants(config.tenants)
    dispatcher.cascades.renew()
    generations.quotas.set_tenancy(dispatcher.tenancy)


class MissingExtra(Exception):
    """The configuration asks for what an optional package gives that is not installed."""

    def __init__(self, key: str, error: ModuleNotFoundError) -> None:
        super().__init__(
            f"{key} is set, but package {error.name!r} of the extra `http` is missing: "
            "pip install 'orchid[http]'"
        )


def _usage(process: psutil.Process) -> tuple[float, int]:
    """CPU seconds and resident bytes."""
    cpu = process.cpu_times()
    return cpu.user + cpu.system, process.memory_info().rss


def make_telemetry(config: ControlPlaneConfig) -> Telemetry:
    """What records requests, as configured."""
    telemetry = config.telemetry
    wall_offset_ns = time.time_ns() - time.monotonic_ns()
    directory = Path(telemetry.directory) if telemetry.directory else None
    sink = open_sink(
        Destinations(telemetry.otlp_endpoint, directory, telemetry.directory_mib << 19),
        process="controlplane",
        resource={"service.name": telemetry.service_name},
        scope="orchid.controlplane",
        wall_offset_ns=wall_offset_ns,
    )
    return Telemetry(telemetry, wall_offset_ns=wall_offset_ns, sink=sink)


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000
