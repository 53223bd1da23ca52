"""A worker in this process, with a client that speaks to it over a real connection."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from numpy.typing import NDArray

from protos.orchid.v1 import common_pb2, worker_pb2, worker_pb2_grpc
from worker.__main__ import make_means
from worker.app import WorkerApp
from worker.config import WorkerConfig
from worker.services import EncoderService

# A machine that many share may be slow: only what hangs shall take so long.
PATIENCE_S = 60.0
MINUTE_US = 60_000_000
QUICK = WorkerConfig(worker_id="under-test", warm_budget_ms=1)


@dataclass
class Served:
    """A running worker and a stub for it."""

    app: WorkerApp
    address: str
    channel: grpc.aio.Channel
    stub: worker_pb2_grpc.WorkerAsyncStub

    @property
    def encoder(self) -> EncoderService:
        """The service of an encoder worker."""
        assert isinstance(self.app.service, EncoderService)
        return self.app.service

    async def until(self, holds: Callable[[], bool]) -> None:
        """Waits for a condition of the worker."""
        async with asyncio.timeout(PATIENCE_S):
            while not holds():  # noqa: ASYNC110 - the worker's state has no event to wait on
                await asyncio.sleep(0.002)

    @contextlib.asynccontextmanager
    async def engine_held(self) -> AsyncIterator[None]:
        """Occupies the engine thread, so that whatever is sent stays in the queue."""
        entered, gate = threading.Event(), threading.Event()

        def hold() -> None:
            entered.set()
            gate.wait(PATIENCE_S)

        future = self.encoder.engine.call(hold, in_turn=True)
        await self.until(entered.is_set)
        try:
            yield
        finally:
            gate.set()
            await asyncio.wrap_future(future)


@contextlib.asynccontextmanager
async def serve(
    repository: Path, models: Sequence[str] = ("tiny",), **changes: Any
) -> AsyncIterator[Served]:
    """Serves a repository; the models are ready when this returns."""
    config = replace(QUICK, repository=repository, models=tuple(models), **changes)
    app = WorkerApp(config, make_means(config))
    address = await app.start()
    options = (
        ("grpc.max_receive_message_length", 64 << 20),
        ("grpc.max_send_message_length", 64 << 20),
    )
    async with grpc.aio.insecure_channel(address, options=options) as channel:
        stub: worker_pb2_grpc.WorkerAsyncStub = worker_pb2_grpc.WorkerStub(channel)
        served = Served(app, address, channel, stub)
        try:
            await served.until(
                lambda: (
                    len(held := app.host.describe()) == len(models)
                    and all(model.state.value in ("ready", "failed") for model in held)
                )
            )
            yield served
        finally:
            await app.stop()


class Stream:
    """One Execute stream that keeps results by item id."""

    def __init__(self, served: Served) -> None:
        self.call = served.stub.Execute()
        self._markers = 0
        self.results: dict[int, worker_pb2.ItemResult] = {}
        self.batches: dict[int, worker_pb2.BatchResult] = {}
        self.messages: list[worker_pb2.ExecuteResponse] = []

    async def send(self, *batches: worker_pb2.Batch, cancel: Iterable[int] = ()) -> None:
        await self.call.write(
            worker_pb2.ExecuteRequest(batches=batches, cancel_item_ids=list(cancel))
        )

    async def next_message(self) -> worker_pb2.ExecuteResponse:
        """One message as it comes, without the checks of `receive`."""
        async with asyncio.timeout(PATIENCE_S):
            message = await self.call.read()
        assert isinstance(message, worker_pb2.ExecuteResponse)
        return message

    async def receive(self, items: int) -> dict[int, worker_pb2.ItemResult]:
        """Reads until that many items in all are answered."""
        async with asyncio.timeout(PATIENCE_S):
            while len(self.results) < items:
                assert await self._read(), "the stream ended early"
        return self.results

    async def settled(self) -> None:
        """Returns when the worker has taken everything sent so far: a marker has its refusal."""
        marker = 1 << 40 | self._markers
        self._markers += 1
        await self.send(batch(marker, token_item(marker, [1]), model="no such model"))
        async with asyncio.timeout(PATIENCE_S):
            while marker not in self.results:
                assert await self._read(), "the stream ended early"
        del self.results[marker]

    async def finish(self) -> None:
        """Ends this side and reads to the end of the other."""
        await self.call.done_writing()
        async with asyncio.timeout(PATIENCE_S):
            while await self._read():
                pass

    async def _read(self) -> bool:
        message = await self.call.read()
        if not isinstance(message, worker_pb2.ExecuteResponse):
            return False
        self.messages.append(message)
        for batch in message.results:
            assert batch.batch_id not in self.batches, "a batch was answered twice"
            self.batches[batch.batch_id] = batch
            for item in batch.items:
                assert item.item_id not in self.results, "an item was answered twice"
                self.results[item.item_id] = item
        return True


def token_item(item_id: int, *rows: Sequence[int], budget_us: int = MINUTE_US) -> worker_pb2.Item:
    ids = np.array([token for row in rows for token in row], "<i4")
    tokens = common_pb2.TokenSequences(token_ids=ids.tobytes(), lengths=[len(row) for row in rows])
    return worker_pb2.Item(item_id=item_id, budget_us=budget_us, tokens=tokens)


def tensor_item(
    item_id: int, budget_us: int = MINUTE_US, **arrays: NDArray[np.float32]
) -> worker_pb2.Item:
    tensors = [
        common_pb2.Tensor(
            name=name,
            data_type=common_pb2.DATA_TYPE_FLOAT32,
            shape=array.shape,
            data=array.tobytes(),
        )
        for name, array in arrays.items()
    ]
    return worker_pb2.Item(item_id=item_id, budget_us=budget_us, tensors=tensors)


def batch(
    batch_id: int, *items: worker_pb2.Item, model: str = "tiny", variant: str = "tiny-a"
) -> worker_pb2.Batch:
    return worker_pb2.Batch(batch_id=batch_id, model=model, variant=variant, items=items)


def one(item_id: int, budget_us: int = MINUTE_US) -> worker_pb2.Batch:
    """A batch of one short item."""
    return batch(item_id, token_item(item_id, [2, 5, 6, 3], budget_us=budget_us))


def floats(result: worker_pb2.ItemResult, index: int = 0) -> NDArray[np.float32]:
    """An output of an item that has an answer."""
    assert result.status == worker_pb2.ITEM_STATUS_OK, result.message
    tensor = result.outputs[index]
    return np.frombuffer(tensor.data, "<f4").reshape(tuple(tensor.shape))
