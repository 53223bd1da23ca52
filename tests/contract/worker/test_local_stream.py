"""Execute on a socket of the machine: the same answers, and the same ends, as by gRPC."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from bench.certificates import Authority
from controlplane.rpc.local_stream import LocalStream, open_local
from protos.local_stream import address_of, header
from protos.orchid.v1 import worker_pb2 as pb
from tests.contract.worker.serving import (
    PATIENCE_S,
    Served,
    Stream,
    batch,
    floats,
    one,
    serve,
    token_item,
)
from tests.contract.worker.test_security import tls_of
from worker.rpc import attachment, local_stream


class Caller:
    """A control plane's end of one local stream, which keeps results by item id."""

    def __init__(self) -> None:
        self.results: dict[int, pb.ItemResult] = {}
        self.loads: list[pb.WorkerLoad] = []
        self.stream: LocalStream | None = None

    def received(self, message: bytes) -> None:
        response = pb.ExecuteResponse.FromString(message)
        self.loads.append(response.load)
        for each in response.results:
            for item in each.items:
                assert item.item_id not in self.results, "an item was answered twice"
                self.results[item.item_id] = item

    def send(self, *batches: pb.Batch, cancel: tuple[int, ...] = ()) -> None:
        assert self.stream is not None
        request = pb.ExecuteRequest(batches=batches, cancel_item_ids=cancel)
        self.stream.write((request.SerializeToString(),))

    async def until(self, items: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while len(self.results) < items:  # noqa: ASYNC110 - a message has no event of its own
                await asyncio.sleep(0.002)


async def connected(served: Served, controlplane: str = "cp", worker: str = "under-test") -> Caller:
    """A caller; its stream is None when the worker did not take it."""
    caller = Caller()
    caller.stream = await open_local(
        served.app.service.servicer.execute_socket,
        controlplane_id=controlplane,
        worker_id=worker,
        max_message_bytes=64 << 20,
        received=caller.received,
        writable=lambda: None,
    )
    return caller


@asynccontextmanager
async def calling(served: Served) -> AsyncIterator[Caller]:
    caller = await connected(served)
    assert caller.stream is not None
    try:
        yield caller
    finally:
        caller.stream.abort()
        await caller.stream.ended


def status(result: pb.ItemResult) -> str:
    return pb.ItemStatus.Name(result.status).removeprefix("ITEM_STATUS_")


async def test_a_worker_names_its_socket_and_answers_there_as_by_grpc(repository: Path) -> None:
    async with serve(repository) as served, calling(served) as caller:
        described = await served.stub.Describe(pb.DescribeRequest())
        assert described.execute_socket == served.app.service.servicer.execute_socket != ""
        grpc_stream = Stream(served)
        for number in range(1, 4):
            await grpc_stream.send(one(number))
            caller.send(one(number))
        await caller.until(3)
        expected = await grpc_stream.receive(3)
        for number, result in caller.results.items():
            assert (floats(result) == floats(expected[number])).all()
        assert caller.loads[-1].resident_bytes > 0
        await grpc_stream.finish()


async def test_messages_that_come_together_are_all_answered(repository: Path) -> None:
    async with serve(repository) as served, calling(served) as caller:
        for number in range(1, 41):
            caller.send(one(number), batch(100 + number, token_item(100 + number, [2, -1])))
        await caller.until(80)
        assert {status(caller.results[n]) for n in range(1, 41)} == {"OK"}
        assert {status(caller.results[100 + n]) for n in range(1, 41)} == {"INVALID_ARGUMENT"}


async def test_items_are_cancelled_and_the_end_of_the_stream_cancels_the_rest(
    repository: Path,
) -> None:
    async with serve(repository) as served:
        caller = await connected(served)
        assert caller.stream is not None
        state = served.encoder.engine.state
        async with served.engine_held():
            caller.send(one(1), one(2), one(3))
            caller.send(cancel=(2,))
            await caller.until(1)
            assert status(caller.results[2]) == "CANCELLED"
            assert state().queued_items == 2
            caller.stream.abort()
            await served.until(lambda: state().queued_items == 0)
        await caller.stream.ended
        assert set(caller.results) == {2}


async def test_a_stream_that_is_closed_ends_once_its_work_is_answered(repository: Path) -> None:
    async with serve(repository) as served, calling(served) as caller:
        assert caller.stream is not None
        async with served.engine_held():
            caller.send(one(1))
            await served.until(lambda: served.encoder.engine.state().queued_items == 1)
            served.app.service.servicer.close_streams()
            assert not caller.stream.ended.done()
        async with asyncio.timeout(PATIENCE_S):
            await caller.stream.ended
        assert status(caller.results[1]) == "OK"


async def test_work_of_a_second_control_plane_is_refused(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attachment, "_PATIENCE_S", 0.05)
    async with serve(repository) as served:
        served.app.service.servicer.welcomed("first")
        first = await connected(served, "first")
        assert first.stream is not None
        assert (await connected(served, "second")).stream is None
        first.send(one(1))
        await first.until(1)
        # Another welcome ends the stream of the one before.
        served.app.service.servicer.welcomed("second")
        async with asyncio.timeout(PATIENCE_S):
            await first.stream.ended


async def test_a_socket_of_another_worker_or_of_nobody_is_not_taken(repository: Path) -> None:
    async with serve(repository) as served:
        assert (await connected(served, worker="somebody else")).stream is None
    gone = await connected(served)
    assert gone.stream is None


@pytest.mark.parametrize(
    "sent",
    [
        header(2) + b"cp" + header(4) + b"work",
        header(1) + b"\xff",
        header((64 << 20) + 1),
    ],
    ids=["work before the welcome", "an id that is no text", "too large"],
)
async def test_what_is_no_hello_ends_the_connection_only(
    repository: Path, sent: bytes, caplog: Any
) -> None:
    caplog.set_level(logging.WARNING, "worker")
    async with serve(repository) as served:
        name = address_of(served.app.service.servicer.execute_socket)
        with socket.socket(socket.AF_UNIX) as rude:
            rude.setblocking(False)
            rude.connect(name)
            loop = asyncio.get_running_loop()
            await loop.sock_sendall(rude, sent)
            async with asyncio.timeout(PATIENCE_S):
                assert await _ended(loop, rude)
        async with calling(served) as caller:
            assert caller.stream is not None
            # Nor does a message that is none harm anybody else.
            other = await connected(served)
            assert other.stream is not None
            other.stream.write((b"\xff\xff",))
            await other.stream.ended
            caller.send(one(1))
            await caller.until(1)
    assert "a local stream ends" in caplog.text


@pytest.mark.parametrize("sent", [b"", header(2) + b"c"], ids=["nothing", "half a hello"])
async def test_who_does_not_say_who_he_is_holds_no_place(
    repository: Path, sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_stream, "_HELLO_S", 0.05)
    loop = asyncio.get_running_loop()
    async with serve(repository) as served, calling(served) as caller:
        with socket.socket(socket.AF_UNIX) as silent:
            silent.setblocking(False)
            silent.connect(address_of(served.app.service.servicer.execute_socket))
            await loop.sock_sendall(silent, sent)
            async with asyncio.timeout(PATIENCE_S):
                assert await _ended(loop, silent)
        # Whoever has said it stays, however long he is silent then.
        caller.send(one(1))
        await caller.until(1)


async def test_who_does_not_say_who_he_is_holds_up_no_end(repository: Path) -> None:
    loop = asyncio.get_running_loop()
    async with serve(repository) as served:
        with socket.socket(socket.AF_UNIX) as silent:
            silent.setblocking(False)
            silent.connect(address_of(served.app.service.servicer.execute_socket))
            async with calling(served):
                pass
            async with asyncio.timeout(PATIENCE_S):
                await served.app.service.servicer.end_streams(grace_s=10 * PATIENCE_S)
                assert await _ended(loop, silent)


async def _ended(loop: asyncio.AbstractEventLoop, connection: socket.socket) -> bool:
    try:
        return await loop.sock_recv(connection, 1) == b""
    except ConnectionError:
        return True


async def test_a_worker_that_encrypts_has_no_socket(repository: Path, tmp_path: Path) -> None:
    tls = tls_of(Authority(tmp_path), mutual=False)
    async with serve_quietly(repository, tls=tls) as served:
        assert served.execute_socket == ""


@asynccontextmanager
async def serve_quietly(repository: Path, **settings: Any) -> AsyncIterator[Any]:
    """The servicer of a worker that nobody calls."""
    from worker.__main__ import make_means
    from worker.app import WorkerApp
    from worker.config import WorkerConfig

    config = WorkerConfig(worker_id="under-test", repository=repository, **settings)
    app = WorkerApp(config, make_means(config))
    await app.start()
    try:
        yield app.service.servicer
    finally:
        await app.stop()
