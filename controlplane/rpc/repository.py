"""Loading and unloading models on every worker that has them in its repository."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

import grpc

from controlplane.errors import NotFound, Unavailable, WorkerFault
from controlplane.registry import WorkerSession
from controlplane.rpc.fleet import FleetServicer
from controlplane.rpc.worker_client import WorkerClient

_Act = Callable[[WorkerClient], Awaitable[object]]


class FleetRepository:
    """The workers' repositories seen as one. Lives on the event loop."""

    def __init__(self, fleet: FleetServicer) -> None:
        self._fleet = fleet

    def available(self) -> Iterable[str]:
        """Names of models that some live worker could load, sorted."""
        names: set[str] = set()
        for session, _ in self._fleet.clients():
            names.update(session.available, session.models)
        return sorted(names)

    async def load(self, model: str) -> None:
        """Load a model on every worker that has it; raises NotFound, Unavailable or WorkerFault."""
        await self._everywhere(
            "load",
            model,
            has=lambda session: model in session.available or model in session.models,
            act=lambda client: client.load(model),
        )

    async def unload(self, model: str) -> None:
        """Take a model off every worker; raises NotFound, Unavailable or WorkerFault."""
        await self._everywhere(
            "unload",
            model,
            has=lambda session: model in session.models,
            act=lambda client: client.unload(model),
        )

    async def _everywhere(
        self, verb: str, model: str, *, has: Callable[[WorkerSession], bool], act: _Act
    ) -> None:
        clients = self._fleet.clients()
        if not clients:
            raise Unavailable(f"no live worker to {verb} model {model!r} on", 1000)
        holders = [(session.identity.id, client) for session, client in clients if has(session)]
        if not holders:
            raise NotFound(f"no worker has model {model!r}; models: {', '.join(self.available())}")
        faults = await asyncio.gather(*(_fault(act(client)) for _, client in holders))
        failed = [
            f"{worker}: {fault}"
            for (worker, _), fault in zip(holders, faults, strict=True)
            if fault
        ]
        if failed:
            raise WorkerFault(f"could not {verb} model {model!r} on " + "; ".join(failed))


async def _fault(action: Awaitable[object]) -> str:
    """What went wrong with a call to a worker, empty when nothing did."""
    try:
        await action
    except grpc.aio.AioRpcError as error:
        return f"{error.code().name}: {error.details()}"
    return ""
