"""The orchid.v1.Worker service: thin, every decision is made by what it calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from protos.orchid.v1 import common_pb2, worker_pb2
from worker.changes import Changes
from worker.host import ModelHost
from worker.hosted import ModelSnapshot
from worker.ledger import MemoryLedger
from worker.refusals import DRAINING
from worker.rpc.attachment import Attachment
from worker.rpc.convert import model_to, unreadable_to
from worker.rpc.drain import Drainer
from worker.rpc.execute import ExecuteParts, ExecuteStream
from worker.rpc.generate import GenerateParts, serve_generation
from worker.rpc.handlers import Context
from worker.rpc.local_stream import LocalListener, LocalStream
from worker.rpc.memory import memory_to


class WorkerServicer:
    """The part of `orchid.v1.Worker` that every class of worker has.

    `changes` counts the changes of what the host describes. Worker errors that leave a method
    become statuses in `rpc/handlers.py`.
    """

    def __init__(
        self,
        *,
        worker_id: str,
        engine_version: str,
        host: ModelHost,
        ledger: MemoryLedger,
        drainer: Drainer,
        changes: Changes,
        exit_process: Callable[[], None],
    ) -> None:
        self._worker_id = worker_id
        self._engine_version = engine_version
        self._host = host
        self._ledger = ledger
        self._drainer = drainer
        self._changes = changes
        self._exit_process = exit_process
        self._attachment = Attachment()

    def welcomed(self, controlplane_id: str) -> None:
        """A control plane took the worker in: work of any other one is refused from now on."""
        self._attachment.welcomed(controlplane_id)

    @property
    def execute_socket(self) -> str:
        """The name of the socket that carries Execute on this machine, empty where none does."""
        return ""

    async def listen_locally(self) -> None:
        """Lets control planes of this machine do without gRPC where that is possible."""

    def close_streams(self) -> None:
        """Ends what has no end of its own, once what it has accepted is answered."""

    async def end_streams(self, grace_s: float) -> None:
        """Ends what `close_streams` has not, after so long."""

    async def Describe(
        self, request: worker_pb2.DescribeRequest, context: Context
    ) -> worker_pb2.DescribeResponse:
        """Manifests, profiles and readiness of the models held; NOT_FOUND names those there are."""
        return await asyncio.to_thread(self._describe, request)

    def _describe(self, request: worker_pb2.DescribeRequest) -> worker_pb2.DescribeResponse:
        documents = request.include_tokenizers
        snapshots = self._host.describe(list(dict.fromkeys(request.models)))
        unreadable = {} if request.models else self._host.unreadable()
        # The control plane loads a model on every worker that says it could.
        names = [name for name in self._host.available_models() if self._host.serves(name)]
        return worker_pb2.DescribeResponse(
            worker_id=self._worker_id,
            models=[
                *(model_to(snapshot, documents=documents) for snapshot in snapshots),
                *(unreadable_to(name, failure) for name, failure in unreadable.items()),
            ],
            available_models=names,
            engine_version=self._engine_version,
            execute_socket=self.execute_socket,
            memory=memory_to(self._ledger.latest),
        )

    async def Load(self, request: worker_pb2.LoadRequest, context: Context) -> None:
        """Streams the model's description whenever it changes, until it is ready or has failed."""
        if self._drainer.draining:
            raise DRAINING
        load = asyncio.create_task(
            asyncio.to_thread(self._host.load, request.model, tuple(request.variants))
        )
        # The load goes on when the caller leaves; its end is then seen by Describe only.
        load.add_done_callback(_consume)
        load.add_done_callback(lambda _: self._changes.notify())
        seen, last = self._changes.version, common_pb2.ModelDescription()
        while not load.done():
            seen = await self._changes.wait(seen)
            current = self._description(request.model)
            if current is not None and current != last and not load.done():
                await context.write(worker_pb2.LoadProgress(model=current))
                last = current
        await context.write(worker_pb2.LoadProgress(model=model_to(load.result())))

    def _description(self, name: str) -> common_pb2.ModelDescription | None:
        held = (s for s in self._host.describe() if s.manifest.name == name)
        snapshot = next(held, None)
        return None if snapshot is None else model_to(snapshot)

    async def Unload(
        self, request: worker_pb2.UnloadRequest, context: Context
    ) -> worker_pb2.UnloadResponse:
        """Refuses new work for the model, finishes what was accepted, then lets it go."""
        await asyncio.to_thread(self._host.unload, request.model)
        return worker_pb2.UnloadResponse()

    async def Warm(
        self, request: worker_pb2.WarmRequest, context: Context
    ) -> worker_pb2.WarmResponse:
        """Measures the model's profiles again; it goes on serving meanwhile."""
        snapshot: ModelSnapshot = await asyncio.to_thread(self._host.warm, request.model)
        return worker_pb2.WarmResponse(model=model_to(snapshot))

    async def Drain(
        self, request: worker_pb2.DrainRequest, context: Context
    ) -> worker_pb2.DrainResponse:
        """Refuses new work, answers once the old is finished or the time is over."""
        report = await self._drainer.drain(request.timeout_ms / 1e3 or None)
        if request.exit:
            self._exit_process()
        return worker_pb2.DrainResponse(
            finished_items=report.finished_items, abandoned_items=report.abandoned_items
        )


class EncoderServicer(WorkerServicer):
    """Implements `orchid.v1.Worker` for workers that execute batches."""

    def __init__(self, parts: ExecuteParts, **common: Any) -> None:
        super().__init__(**common)
        self._parts = parts
        # Each with the control plane that opened it, empty for others.
        self._streams: dict[ExecuteStream, str] = {}
        self._listener = LocalListener(self._local_stream)

    @property
    def execute_socket(self) -> str:
        """As of every worker."""
        return self._listener.name

    async def listen_locally(self) -> None:
        """As of every worker."""
        await self._listener.start()

    async def end_streams(self, grace_s: float) -> None:
        """As of every worker; gRPC ends its own streams."""
        await self._listener.stop(grace_s)

    def _local_stream(self) -> LocalStream:
        return LocalStream(self._parts, self._worker_id, self._attachment.check_id, self._streams)

    async def Execute(self, request_iterator: object, context: Context) -> None:
        """Serves one stream of batches; see `ExecuteStream`.

        Raises OtherControlPlane for one that the worker does not belong to.
        """
        owner = await self._attachment.check(context)
        stream = ExecuteStream(self._parts)
        self._streams[stream] = owner
        try:
            await stream.serve(context)
        finally:
            del self._streams[stream]

    def welcomed(self, controlplane_id: str) -> None:
        """As of every worker; streams of the control plane before end once they are answered."""
        super().welcomed(controlplane_id)
        for stream, owner in self._streams.items():
            if owner not in ("", controlplane_id):
                stream.close()

    def close_streams(self) -> None:
        """Ends every Execute stream once what it has accepted is answered."""
        for stream in tuple(self._streams):
            stream.close()


class DecodeServicer(WorkerServicer):
    """Implements `orchid.v1.Worker` for workers that generate."""

    def __init__(self, parts: GenerateParts, **common: Any) -> None:
        super().__init__(**common)
        self._parts = parts

    async def Generate(self, request: worker_pb2.GenerateCall, context: Context) -> None:
        """Serves one generation; see `serve_generation`.

        Raises OtherControlPlane as well, for one that the worker does not belong to.
        """
        await self._attachment.check(context)
        await serve_generation(self._parts, request, context)


def _consume(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()
