"""A worker's gRPC server in this process: it describes a model and answers batches at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc

from controlplane.rpc.services import service_handler
from protos.orchid.v1 import common_pb2, fleet_pb2, fleet_pb2_grpc, worker_pb2
from tests.contract.controlplane.front_door import tokenizer_document

SERVICE = worker_pb2.DESCRIPTOR.services_by_name["Worker"]
SHA = "ab" * 32


def model(
    name: str = "tiny",
    *,
    digest: str = "sha256:1",
    state: common_pb2.ReadinessState.ValueType = common_pb2.READINESS_STATE_READY,
) -> common_pb2.ModelDescription:
    """A classifier of two ragged variants with profiles."""
    variants = [
        common_pb2.VariantDescription(
            name=variant,
            layout="ragged",
            precision="fp32",
            tokenizer="words",
            quality=[common_pb2.QualityEvidence(population="p", metric="accuracy", value=value)],
            profile=common_pb2.VariantProfile(
                variant=variant,
                s0_us=50.0,
                s1_us_per_token=cost,
                reference_tokens=16,
                p50_us=50.0 + 16 * cost,
                sigma=0.1,
            ),
            ready=state == common_pb2.READINESS_STATE_READY,
            max_tokens=64,
        )
        for variant, value, cost in (("tiny-a", 0.9, 20.0), ("tiny-b", 0.8, 5.0))
    ]
    return common_pb2.ModelDescription(
        name=name,
        version="1",
        task="text-classification",
        manifest_digest=digest,
        labels=["negative", "positive"],
        default_tokenizer="words",
        tokenizers=[common_pb2.Tokenizer(name="words", sha256=SHA)],
        variants=variants,
        state=state,
        progress=1.0 if state == common_pb2.READINESS_STATE_READY else 0.5,
        primary_output="logits",
    )


@dataclass(eq=False)
class FakeWorker:
    """Counts messages; items are answered with their token count while `answering` is set."""

    name: str = "w1"
    models: list[common_pb2.ModelDescription] = field(default_factory=lambda: [model()])
    cpu_model: str = "cpu"
    answering: bool = True
    messages: list[worker_pb2.ExecuteRequest] = field(default_factory=list)
    descriptions: int = 0
    streams: int = 0
    available: list[str] = field(default_factory=lambda: ["tiny", "spare"])
    break_stream: asyncio.Event = field(default_factory=asyncio.Event)

    async def Describe(
        self, request: worker_pb2.DescribeRequest, context: Any
    ) -> worker_pb2.DescribeResponse:
        self.descriptions += 1
        described = []
        for each in self.models:
            copy = common_pb2.ModelDescription()
            copy.CopyFrom(each)
            for tokenizer in copy.tokenizers:
                tokenizer.document = tokenizer_document()
            described.append(copy)
        return worker_pb2.DescribeResponse(
            worker_id=self.name, models=described, available_models=self.available
        )

    async def Execute(self, request: object, context: Any) -> None:
        self.streams += 1
        reading = asyncio.create_task(self._serve(context))
        broken = asyncio.create_task(self.break_stream.wait())
        await asyncio.wait({reading, broken}, return_when=asyncio.FIRST_COMPLETED)
        reading.cancel()
        broken.cancel()
        if self.break_stream.is_set():
            self.break_stream.clear()
            await context.abort(grpc.StatusCode.INTERNAL, "the engine is gone")

    async def _serve(self, context: Any) -> None:
        while isinstance(request := await context.read(), worker_pb2.ExecuteRequest):
            self.messages.append(request)
            if self.answering:
                results = [self._result(batch) for batch in request.batches]
                await context.write(worker_pb2.ExecuteResponse(results=results))

    def _result(self, batch: worker_pb2.Batch) -> worker_pb2.BatchResult:
        items = []
        for item in batch.items:
            count = sum(item.tokens.lengths)
            output = common_pb2.Tensor(
                name="logits",
                data_type=common_pb2.DATA_TYPE_INT64,
                shape=[1],
                data=count.to_bytes(8, "little"),
            )
            items.append(
                worker_pb2.ItemResult(
                    item_id=item.item_id, status=worker_pb2.ITEM_STATUS_OK, outputs=[output]
                )
            )
        return worker_pb2.BatchResult(
            batch_id=batch.batch_id,
            items=items,
            run_us=200,
            cpu_us=200,
            executed_items=len(items),
        )


class Membership:
    """The worker's Register stream, driven by the test."""

    def __init__(
        self,
        worker: FakeWorker,
        address: str,
        channel: grpc.aio.Channel,
        metadata: tuple[tuple[str, str], ...] = (),
    ) -> None:
        self.worker = worker
        stub: fleet_pb2_grpc.FleetAsyncStub = fleet_pb2_grpc.FleetStub(channel)
        self.call: Any = stub.Register(metadata=metadata)
        self._address = address

    async def hello(self, **changes: Any) -> fleet_pb2.FleetDirective:
        """Announce the worker and return the control plane's first directive."""
        hello = fleet_pb2.WorkerHello(
            **{
                "worker_id": self.worker.name,
                "address": self._address,
                "worker_class": fleet_pb2.WORKER_CLASS_ENCODER,
                "threads": 1,
                "cpu_model": self.worker.cpu_model,
                "simd": "avx2",
                **changes,
            }
        )
        await self.call.write(fleet_pb2.WorkerReport(hello=hello))
        return await self.directive()

    async def directive(self) -> fleet_pb2.FleetDirective:
        """The control plane's next directive."""
        read = await self.call.read()
        assert isinstance(read, fleet_pb2.FleetDirective)
        return read

    async def report(self, load: worker_pb2.WorkerLoad | None = None) -> None:
        """Send one load report."""
        await self.call.write(fleet_pb2.WorkerReport(load=load or worker_pb2.WorkerLoad()))

    async def models(self, *models: common_pb2.ModelDescription) -> None:
        """Say that the models changed."""
        await self.call.write(fleet_pb2.WorkerReport(models=fleet_pb2.ModelList(models=models)))


@asynccontextmanager
async def serving(worker: FakeWorker) -> AsyncIterator[str]:
    """The worker's server; gives its address."""
    server = grpc.aio.server()
    server.add_generic_rpc_handlers([service_handler(SERVICE, worker)])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


async def until(condition: Callable[[], bool], what: str) -> None:
    """Wait, at most a minute, until a condition holds; fails naming it."""
    for _ in range(12_000):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise AssertionError(f"never happened: {what}")
