"""Messages of a busy stream: submitted in bunches, each answered as if it were alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import grpc

from controlplane.config import ControlPlaneConfig
from controlplane.errors import Refused, Unavailable
from controlplane.pending import Waiter
from controlplane.policy.records import Answer, Request, RequestClass, Shape, TokenPayload
from controlplane.rpc.asks import Ask
from controlplane.rpc.catalogue import view_of
from controlplane.rpc.intake import Intake, Tokenizing
from controlplane.rpc.services import Context
from controlplane.rpc.statistics import Statistics
from controlplane.rpc.status import Status
from controlplane.rpc.streams import Stream
from protos.codec import Undecodable
from tests.contract.controlplane.front_door import compute, text_model
from tests.unit.controlplane.virtual_loop import VirtualLoop, virtual

MS = 1_000_000
VIEW = view_of(text_model(), Statistics(lambda: 0).counters)
REFUSED, BROKEN = "refused", "broken"


class Call:
    """A caller that sends as it is told; `ends_ns` is the deadline of its call, 0 for none."""

    def __init__(self) -> None:
        self.sent: asyncio.Queue[Any] = asyncio.Queue()
        self.answers: list[str] = []
        self.ends_ns = 0

    async def read(self) -> Any:
        return await self.sent.get()

    async def write(self, message: str) -> None:
        self.answers.append(message)

    def time_remaining(self) -> float | None:
        return (self.ends_ns - loop().now_ns()) / 1e9 if self.ends_ns else None


class House:
    """The dispatcher's part: takes requests, and answers them when told."""

    def __init__(self) -> None:
        self.bunches: list[list[str]] = []
        self.requests: list[Request] = []
        self.waiters: dict[str, tuple[Request, Waiter]] = {}
        self.cancelled: list[int] = []
        self._at_ns = -1
        self._last = 0

    def now_ns(self) -> int:
        return loop().now_ns()

    def next_id(self) -> int:
        self._last += 1
        return self._last

    def attend(self, request: Request, waiter: Waiter) -> None:
        name = request.klass.tenant
        if name == REFUSED:
            raise Refused("the queue is full", 5)
        if self._at_ns != self.now_ns():
            self.bunches.append([])
            self._at_ns = self.now_ns()
        self.bunches[-1].append(name)
        self.requests.append(request)
        self.waiters[name] = request, waiter

    def submit(self, request: Request) -> asyncio.Future[Answer]:
        raise AssertionError("streams attend")

    def cancel(self, request: Request) -> None:
        self.cancelled.append(request.id)

    def answer(self, *names: str) -> None:
        for name in names:
            request, waiter = self.waiters.pop(name)
            waiter.set_result(compute(request))


class Words:
    """A dialect whose messages are the ids of requests of two tokens."""

    def identify(self, message: str) -> str:
        return message

    def open(self, message: str) -> tuple[Ask, int]:
        if message == BROKEN:
            raise ValueError("a fault of ours")
        payload = TokenPayload({"words": bytes(8)}, {"words": (2,)})
        ask = Ask(
            VIEW,
            RequestClass(message),
            0,
            payload=payload,
            shapes={"words": Shape.of_lengths((2,))},
        )
        return ask, 0

    def answered(self, answer: Answer, request_id: str, extra: int) -> str:
        return request_id

    def failed(self, status: Status, request_id: str) -> str:
        return f"{request_id}: {status.code.name}"


def loop() -> VirtualLoop:
    return cast(VirtualLoop, asyncio.get_running_loop())


async def settle() -> None:
    """As many turns as a message needs from its caller to the house, and an answer back."""
    for _ in range(20):
        await asyncio.sleep(0)


@asynccontextmanager
async def busy_stream() -> AsyncIterator[SimpleNamespace]:
    """A stream on which messages came so fast that they wait 2 ms for each other from now on."""
    call, house = Call(), House()
    intake = Intake(ControlPlaneConfig(stream_gather_ms=2), house, cast(Tokenizing, None))
    stream = Stream[Any](intake, Words(), cast(Context, call), max_outstanding=64)
    serving = asyncio.create_task(stream.serve())
    for number in range(1000):
        await send(call, f"w{number}")
        if not house.waiters:
            break
        house.answer(*house.waiters)
    # The last one was the first that waits; it leaves by itself.
    await asyncio.sleep(0.003)
    house.answer(*house.waiters)
    await settle()
    assert len(call.answers) == number + 1
    call.answers.clear()
    house.bunches.clear()
    house.requests.clear()
    try:
        yield SimpleNamespace(call=call, house=house, stream=stream, serving=serving)
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


async def send(call: Call, *messages: Any) -> None:
    for message in messages:
        call.sent.put_nowait(message)
        await asyncio.sleep(0.000_25)
        await settle()


@virtual
async def test_a_bunch_is_submitted_in_order_and_each_answer_has_its_id() -> None:
    async with busy_stream() as busy:
        came = loop().now_ns()
        await send(busy.call, "a", "b", "c")
        assert busy.house.bunches == []
        await asyncio.sleep(0.002)
        assert busy.house.bunches == [["a", "b", "c"]]
        # The wait is theirs: deadlines and times count from when they came.
        arrived = [request.arrived_ns - came for request in busy.house.requests]
        assert [round(ns / MS, 2) for ns in arrived] == [0, 0.25, 0.5]
        busy.house.answer("c", "a")
        await settle()
        assert busy.call.answers == ["c", "a"]
        busy.house.answer("b")
        await settle()
        assert busy.call.answers == ["c", "a", "b"]


@virtual
async def test_a_fault_in_a_bunch_answers_its_message_and_no_other() -> None:
    async with busy_stream() as busy:
        await send(busy.call, "a", Undecodable("a.Message"), REFUSED, BROKEN, "b")
        await asyncio.sleep(0.002)
        assert busy.house.bunches == [["a", "b"]]
        await settle()
        assert busy.call.answers == [
            ": INVALID_ARGUMENT",
            "refused: RESOURCE_EXHAUSTED",
            "broken: INTERNAL",
        ]
        busy.house.answer("a", "b")
        await settle()
        assert busy.call.answers[3:] == ["a", "b"]


@virtual
async def test_the_callers_last_message_lets_nobody_wait() -> None:
    async with busy_stream() as busy:
        await send(busy.call, "a", "b", grpc.aio.EOF)
        assert busy.house.bunches == [["a", "b"]]
        busy.house.answer("b", "a")
        await settle()
        assert busy.call.answers == ["b", "a"]
        assert busy.serving.done()
        assert busy.serving.exception() is None


@virtual
async def test_a_drained_stream_answers_who_waits() -> None:
    async with busy_stream() as busy:
        await send(busy.call, "a", "b")
        busy.stream.drain()
        await settle()
        assert busy.house.bunches == [["a", "b"]]
        assert not busy.serving.done()
        busy.house.answer("a", "b")
        await settle()
        assert busy.call.answers == ["a", "b"]
        assert isinstance(busy.serving.exception(), Unavailable)


@virtual
async def test_who_waits_is_never_submitted_when_the_caller_goes_away() -> None:
    async with busy_stream() as busy:
        await send(busy.call, "a", "b")
        await asyncio.sleep(0.002)
        await send(busy.call, "c", "d")
        busy.serving.cancel()
        await asyncio.sleep(0.01)
        assert busy.serving.cancelled()
        assert busy.house.bunches == [["a", "b"]]
        assert set(busy.house.cancelled) == {request.id for request in busy.house.requests}


@virtual
async def test_the_calls_deadline_holds_for_who_waited() -> None:
    async with busy_stream() as busy:
        busy.call.ends_ns = ends = loop().now_ns() + 500 * MS
        await send(busy.call, "a", "b")
        await asyncio.sleep(0.002)
        deadlines = [request.deadline_ns for request in busy.house.requests]
        assert len(deadlines) == 2
        assert all(abs(deadline - ends) < MS // 100 for deadline in deadlines)


@virtual
async def test_a_full_bunch_leaves_at_once_and_a_full_stream_reads_no_more() -> None:
    async with busy_stream() as busy:
        names = [f"m{number}" for number in range(100)]
        for name in names:
            busy.call.sent.put_nowait(name)
        for _ in range(10):
            await settle()
        # The stream takes 64 that are unanswered, in bunches of 32 that came at the same time.
        assert busy.house.bunches == [names[:64]]
        assert busy.call.sent.qsize() == 36
        busy.house.answer(*names[:64])
        for _ in range(10):
            await settle()
        await asyncio.sleep(0.002)
        assert busy.call.answers == names[:64]
        assert [name for bunch in busy.house.bunches for name in bunch] == names
