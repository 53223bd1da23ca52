"""A stream whose caller is lost while an answer is written."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import grpc
import pytest

from controlplane.config import ControlPlaneConfig
from controlplane.rpc.intake import Intake, Queue, Tokenizing
from controlplane.rpc.services import Context
from controlplane.rpc.status import Status
from controlplane.rpc.streams import Dialect, Stream
from protos.codec import Undecodable


class LostCaller:
    """A call that brought one message and takes none."""

    def __init__(self) -> None:
        self.left = 1
        self.written = asyncio.Event()

    async def read(self) -> Any:
        self.left -= 1
        return Undecodable("a.Message") if self.left == 0 else grpc.aio.EOF

    async def write(self, message: Any) -> None:
        self.written.set()
        raise grpc.aio.InternalError("the call is gone")


class Clockwork:
    """As much of a queue as a message that does not decode needs."""

    def now_ns(self) -> int:
        return 0

    def submit(self, *request: object) -> None:
        raise AssertionError("nothing is to be queued")

    attend = cancel = submit


class Plain:
    def failed(self, status: Status, request_id: str) -> str:
        return status.message


async def test_a_lost_caller_is_left_to_the_transport_to_end() -> None:
    """Ended by us, the transport would send a status again after the write that failed."""
    caller = LostCaller()
    intake = Intake(ControlPlaneConfig(), cast(Queue, Clockwork()), cast(Tokenizing, None))
    stream = Stream[Any](intake, cast(Dialect[Any], Plain()), cast(Context, caller))
    serving = asyncio.create_task(stream.serve())
    await caller.written.wait()
    for _ in range(20):
        await asyncio.sleep(0)
    assert not serving.done()
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
