"""An Execute stream against a caller that does not read."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc

from protos.orchid.v1 import worker_pb2
from worker.encoder_kind import EncoderKind
from worker.engine import RunToken, Session
from worker.host import ModelHost
from worker.jobs import Token
from worker.loop import Clocks, EngineLoop
from worker.measures import BatchMeasures
from worker.memory import memory_room
from worker.records import Execution, Item
from worker.rpc.execute import ExecuteParts, ExecuteStream
from worker.tracing import Tracing
from worker.warmup import Warmup
from worker.watchdog import Watchdog


class DeafCaller:
    """A call whose writes never end until `listening`, and that has always one more message."""

    def __init__(self, messages: int) -> None:
        self.left = messages
        self.listening = asyncio.Event()
        self.answered = 0

    async def read(self) -> Any:
        await asyncio.sleep(0)
        if self.left == 0:
            return grpc.aio.EOF
        self.left -= 1
        item = worker_pb2.Item(item_id=self.left, budget_us=1)
        batch = worker_pb2.Batch(batch_id=self.left, model="none", items=[item])
        return worker_pb2.ExecuteRequest(batches=[batch])

    async def write(self, message: worker_pb2.ExecuteResponse) -> None:
        await self.listening.wait()
        self.answered += len(message.results)


class NoRunner:
    def run(self, model: str, variant: str, items: Collection[Item], token: Token) -> Execution:
        raise AssertionError("nothing is admitted")


@asynccontextmanager
async def parts(repository: Path) -> AsyncIterator[ExecuteParts]:
    loop = asyncio.get_running_loop()
    engine = EngineLoop(
        NoRunner(),
        bound=8,
        clocks=Clocks(time.monotonic_ns, time.thread_time_ns),
        make_token=RunToken,
        wake=loop.call_soon_threadsafe,
    )
    host = ModelHost(
        repository,
        kind=EncoderKind(
            variants=(),
            open_session=Session,
            warmup=Warmup(
                lambda function: function(), RunToken, time.monotonic_ns, 1, time.thread_time_ns
            ),
            release=lambda function: function(),
        ),
        memory=memory_room,
        on_change=lambda: None,
    )
    engine.start()
    watchdog = Watchdog(engine, time.monotonic_ns, loop.call_later)
    tracing = Tracing(None)
    yield ExecuteParts(
        engine,
        host,
        watchdog,
        tracing,
        BatchMeasures(),
        worker_pb2.WorkerLoad,
        time.monotonic_ns,
        1 << 20,
    )
    watchdog.stop()
    engine.stop()


async def test_a_caller_that_does_not_read_is_not_read_either(tmp_path: Path) -> None:
    async with parts(tmp_path) as made:
        caller = DeafCaller(10_000)
        serving = asyncio.create_task(ExecuteStream(made).serve(caller))  # type: ignore[arg-type]
        async with asyncio.timeout(20):
            left = -1
            while left != caller.left:
                left = caller.left
                for _ in range(1000):
                    await asyncio.sleep(0)
            assert 0 < left < 10_000
            caller.listening.set()
            await serving
        assert caller.left == 0 and caller.answered == 10_000
