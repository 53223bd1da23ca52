"""An Execute stream against a caller that does not read."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc

from protos.local_stream import Frames, header
from protos.orchid.v1 import worker_pb2
from worker.encoder_kind import EncoderKind
from worker.engine import RunToken, Session
from worker.host import ModelHost
from worker.jobs import Token
from worker.loop import Clocks, EngineLoop
from worker.measures import BatchMeasures
from worker.memory import memory_room
from worker.records import Execution, Item
from worker.rpc.execute import MOST_UNREAD, ExecuteParts, ExecuteStream
from worker.rpc.local_stream import LocalStream
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


class Transport:
    """A connection that counts what is written to it."""

    def __init__(self) -> None:
        self.ends = socket.socketpair(socket.AF_UNIX)
        self.written = bytearray()
        self.reading = True
        self.over = False

    def get_extra_info(self, name: str) -> socket.socket:
        assert name == "socket"
        return self.ends[0]

    def write(self, data: bytes) -> None:
        self.written += data

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def abort(self) -> None:
        self.over = True
        for end in self.ends:
            end.close()


async def anybody(controlplane: str) -> str:
    return controlplane


async def test_a_local_caller_that_does_not_read_is_not_read_either(tmp_path: Path) -> None:
    async with parts(tmp_path) as made, asyncio.timeout(20):
        streams: dict[ExecuteStream, str] = {}
        transport, stream = Transport(), LocalStream(made, "worker", anybody, streams)
        stream.connection_made(transport)
        stream.data_received(header(2) + b"cp")
        while not transport.written:  # noqa: ASYNC110 - a turn of the loop or two
            await asyncio.sleep(0)
        assert list(streams.values()) == ["cp"]
        stream.pause_writing()
        sent = 0
        while transport.reading:
            batch = worker_pb2.Batch(
                batch_id=sent, model="none", items=[worker_pb2.Item(item_id=sent)]
            )
            message = worker_pb2.ExecuteRequest(batches=[batch]).SerializeToString()
            stream.data_received(header(len(message)) + message)
            sent += 1
            await asyncio.sleep(0)
        assert MOST_UNREAD < sent < 2 * MOST_UNREAD
        stream.resume_writing()
        answered = 0
        while answered < sent:
            await asyncio.sleep(0)
            messages = Frames(1 << 20).feed(bytes(transport.written))
            assert messages[0] == b"worker"
            responses = map(worker_pb2.ExecuteResponse.FromString, messages[1:])
            answered = sum(len(response.results) for response in responses)
        assert transport.reading
        stream.connection_lost(None)
        assert not streams
        transport.abort()
