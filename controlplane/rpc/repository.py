"""Loading and unloading models on every worker that has them in its repository."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

import grpc

from controlplane.errors import NotFound, Unavailable, Unsatisfiable, WorkerFault
from controlplane.registry import WorkerSession
from controlplane.rpc.fleet import FleetServicer
from controlplane.rpc.worker_client import Description, WorkerClient

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

    async def look(self) -> None:
        """Ask the workers what their repositories hold now; one that is silent keeps its answer."""
        clients = self._fleet.clients()
        found = await asyncio.gather(
            *(client.describe(tokenizers=False) for _, client in clients), return_exceptions=True
        )
        for (session, _), description in zip(clients, found, strict=True):
            if isinstance(description, Description):
                session.available = description.available
            elif not isinstance(description, grpc.aio.AioRpcError):
                raise description

    async def load(self, model: str) -> None:
        """Load a model on every worker that has it in its repository now.

        Raises NotFound, Unavailable, Unsatisfiable (it cannot be loaded) or WorkerFault.
        """
        await self.look()
        await self._everywhere(
            "load",
            model,
            has=lambda session: model in session.available or model in session.models,
            act=lambda client: client.load(model),
        )

    async def unload(self, model: str) -> None:
        """Take a model off every worker; raises NotFound, Unavailable or WorkerFault.

        One that another call takes off at the same time is off, too.
        """
        await self._everywhere(
            "unload",
            model,
            has=lambda session: model in session.models,
            act=lambda client: client.unload(model),
            fine=grpc.StatusCode.NOT_FOUND,
        )

    async def _everywhere(
        self,
        verb: str,
        model: str,
        *,
        has: Callable[[WorkerSession], bool],
        act: _Act,
        fine: grpc.StatusCode = grpc.StatusCode.OK,
    ) -> None:
        clients = self._fleet.clients()
        if not clients:
            raise Unavailable(f"no live worker to {verb} model {model!r} on", 1000)
        holders = [(session.identity.id, client) for session, client in clients if has(session)]
        if not holders:
            raise NotFound(f"no worker has model {model!r}; models: {', '.join(self.available())}")
        faults = await asyncio.gather(*(_fault(act(client)) for _, client in holders))
        failed = {
            worker: fault
            for (worker, _), fault in zip(holders, faults, strict=True)
            if fault is not None and fault.code() is not fine
        }
        if not failed:
            return
        each = "; ".join(f"{w}: {f.code().name}: {f.details()}" for w, f in failed.items())
        text = f"could not {verb} model {model!r} on {each}"
        if all(f.code() is grpc.StatusCode.FAILED_PRECONDITION for f in failed.values()):
            raise Unsatisfiable(text)
        raise WorkerFault(text)


async def _fault(action: Awaitable[object]) -> grpc.aio.AioRpcError | None:
    """What went wrong with a call to a worker, None when nothing did."""
    try:
        await action
    except grpc.aio.AioRpcError as error:
        return error
    return None
