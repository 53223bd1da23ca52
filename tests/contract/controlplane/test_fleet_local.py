"""A worker of the same machine gets its work on a socket; when that fails, by gRPC."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from controlplane.errors import TooLate
from protos.local_stream import Frames, address_of, header
from protos.orchid.v1 import worker_pb2
from tests.contract.controlplane.fake_worker import FakeWorker, Membership, serving, until
from tests.contract.controlplane.plane import Plane, running


@pytest.fixture
async def plane() -> AsyncIterator[Plane]:
    async with running() as made:
        yield made


class LocalWorker(FakeWorker):
    """A worker that answers on a socket as well; `says` is the id that it gives there."""

    socket = ""
    says = ""
    # Hears a hello and never answers it.
    mute = False
    hung_up = 0
    received: list[worker_pb2.ExecuteRequest]
    hellos: list[bytes]

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[LocalWorker]:
        self.socket, self.says = f"orchid-test-{secrets.token_hex(8)}", self.says or self.name
        self.received, self.hellos = [], []
        self._writers: list[asyncio.StreamWriter] = []
        server = await asyncio.start_unix_server(self._connected, address_of(self.socket))
        try:
            yield self
        finally:
            server.close()
            self.hang_up()

    def hang_up(self) -> None:
        for writer in self._writers:
            writer.close()

    async def Describe(
        self, request: worker_pb2.DescribeRequest, context: Any
    ) -> worker_pb2.DescribeResponse:
        response = await super().Describe(request, context)
        response.execute_socket = self.socket
        return response

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        frames, greeted = Frames(1 << 20), False
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                for message in frames.feed(data):
                    if greeted:
                        self._answer(worker_pb2.ExecuteRequest.FromString(message), writer)
                    else:
                        greeted = True
                        self.hellos.append(message)
                        if not self.mute:
                            self._send(writer, self.says.encode())
        self.hung_up += 1
        writer.close()

    def _answer(self, request: worker_pb2.ExecuteRequest, writer: asyncio.StreamWriter) -> None:
        self.received.append(request)
        if self.answering and request.batches:
            results = [self._result(batch) for batch in request.batches]
            load = worker_pb2.WorkerLoad(completed_items=len(self.received))
            response = worker_pb2.ExecuteResponse(results=results, load=load)
            self._send(writer, response.SerializeToString())

    def _send(self, writer: asyncio.StreamWriter, message: bytes) -> None:
        writer.write(header(len(message)) + message)


async def test_work_goes_to_the_socket_and_no_stream_is_opened(plane: Plane) -> None:
    async with LocalWorker().listening() as worker, plane.member(worker):
        answers = await asyncio.gather(*(plane.ask("good " * n) for n in range(1, 20)))
        assert [int.from_bytes(a.outputs[0].data, "little") for a in answers] == [
            n + 2 for n in range(1, 20)
        ]
        assert worker.hellos == [b"cp"]
        assert worker.streams == 0 and not worker.messages
        session = plane.registry.session_of(worker.name)
        assert session is not None
        await until(
            lambda: session.load.completed_items == len(worker.received), "the loads were heard"
        )
        assert not any(plane.dispatcher.gauges().values())


async def test_an_expired_request_is_cancelled_on_the_socket(plane: Plane) -> None:
    async with LocalWorker(answering=False).listening() as worker, plane.member(worker) as member:
        asked = asyncio.create_task(plane.ask(deadline_ms=80))
        await until(lambda: bool(worker.received), "the request reached the worker")
        await member.report()
        with pytest.raises(TooLate):
            await asked
        sent = worker.received[0].batches[0].items[0].item_id
        await until(
            lambda: any(sent in m.cancel_item_ids for m in worker.received), "the cancel arrived"
        )


async def test_a_lost_socket_is_a_lost_worker_at_once(plane: Plane) -> None:
    async with (
        LocalWorker("broken", answering=False).listening() as broken,
        plane.member(broken) as membership,
    ):
        asked = asyncio.create_task(plane.ask(deadline_ms=5000))
        await until(lambda: bool(broken.received), "the request reached the worker")
        async with plane.member(FakeWorker("other")):
            broken.hang_up()
            answer = await asked
            assert answer.provenance.worker_id == "other"
            assert answer.outcome.dispatches == 2
            assert await membership.call.read() is grpc.aio.EOF


async def test_a_socket_that_is_not_this_workers_leaves_grpc(plane: Plane) -> None:
    worker = LocalWorker()
    worker.says = "another"
    async with worker.listening(), plane.member(worker):
        assert (await plane.ask()).provenance.worker_id == worker.name
        assert worker.hellos == [b"cp"]
        assert worker.streams == 1 and worker.messages and not worker.received


async def test_a_socket_that_is_not_there_leaves_grpc(plane: Plane) -> None:
    worker = LocalWorker()
    worker.socket = f"orchid-test-{secrets.token_hex(8)}"
    async with plane.member(worker):
        assert (await plane.ask()).provenance.worker_id == worker.name
        assert worker.streams == 1


async def test_a_socket_of_another_user_leaves_grpc(
    plane: Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with LocalWorker().listening() as worker:
        monkeypatch.setattr("os.geteuid", lambda: -2)
        async with plane.member(worker):
            assert (await plane.ask()).provenance.worker_id == worker.name
            assert worker.streams == 1 and not worker.hellos


async def test_a_session_that_ends_while_it_greets_leaves_no_connection(plane: Plane) -> None:
    async with LocalWorker().listening() as worker:
        worker.mute = True
        async with serving(worker) as address:
            membership = Membership(worker, address, plane.channel)
            assert (await membership.hello()).HasField("welcome")
            await until(lambda: worker.hellos == [b"cp"], "the control plane greets")
            assert worker.hung_up == 0
            membership.call.cancel()
            await until(lambda: worker.hung_up == 1, "the connection is closed")
