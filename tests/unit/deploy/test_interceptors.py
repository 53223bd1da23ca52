"""Calls of every kind, made by grpc and by grpc.aio, are spans that the other side can join."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator
from concurrent import futures
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest

from deploy.channels import aio_channel, channel
from deploy.traces.client import LOAD, CallTraces, ClientTrace
from deploy.traces.spans import CLIENT, read_latest
from protos.tracing.spans import SpanRecord

KINDS = ("Unary", "Answers", "Messages", "Both")


@dataclass
class Server:
    """A server of methods of every kind, and the metadata of the calls that came."""

    address: str = ""
    seen: list[dict[str, Any]] = field(default_factory=list)

    def note(self, context: Any) -> None:
        self.seen.append(dict(context.invocation_metadata()))

    def unary(self, request: bytes, context: Any) -> bytes:
        self.note(context)
        return request

    def answers(self, request: bytes, context: Any) -> Iterator[bytes]:
        self.note(context)
        yield request
        yield request

    def messages(self, requests: Iterator[bytes], context: Any) -> bytes:
        self.note(context)
        return b"".join(requests)

    def both(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        self.note(context)
        yield from requests

    def refused(self, request: bytes, context: Any) -> bytes:
        self.note(context)
        context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "not now")
        return b""

    def broken(self, request: bytes, context: Any) -> Iterator[bytes]:
        yield request
        context.abort(grpc.StatusCode.UNAVAILABLE, "gone")

    def traceparents(self) -> list[str]:
        return [str(metadata.get("traceparent", "")) for metadata in self.seen]


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    handlers: dict[str, Any] = {
        "Unary": grpc.unary_unary_rpc_method_handler(made.unary),
        "Answers": grpc.unary_stream_rpc_method_handler(made.answers),
        "Messages": grpc.stream_unary_rpc_method_handler(made.messages),
        "Both": grpc.stream_stream_rpc_method_handler(made.both),
        "Refused": grpc.unary_unary_rpc_method_handler(made.refused),
        "Broken": grpc.unary_stream_rpc_method_handler(made.broken),
    }
    grpc_server = grpc.server(futures.ThreadPoolExecutor(4))
    generic: Any = grpc.method_handlers_generic_handler("s.S", handlers)
    grpc_server.add_generic_rpc_handlers((generic,))
    made.address = f"127.0.0.1:{grpc_server.add_insecure_port('127.0.0.1:0')}"
    grpc_server.start()
    yield made
    grpc_server.stop(None).wait()


def trace() -> ClientTrace:
    return ClientTrace("test", time.monotonic_ns)


def check(recorder: ClientTrace, server: Server, *names: str) -> list[SpanRecord]:
    """The spans of the calls, which the server was told to join in this order."""
    root, prepare, *calls = recorder.records()
    assert (root.name, prepare.name) == ("test", "prepare")
    assert [call.name for call in calls] == [*names]
    for call, told in zip(calls, server.traceparents(), strict=True):
        assert told == f"00-{recorder.id}-{call.span_id:016x}-01"
        assert call.parent_id == root.span_id and call.kind == CLIENT
        assert root.begun_ns <= call.begun_ns <= call.ended_ns <= root.ended_ns
    return calls


def test_calls_of_every_kind_are_spans(server: Server) -> None:
    recorder = trace()
    with channel(server.address, recorder=recorder) as made:
        anything: Any = made
        assert anything.unary_unary("/s.S/Unary")(b"a") == b"a"
        assert list(anything.unary_stream("/s.S/Answers")(b"a")) == [b"a", b"a"]
        assert anything.stream_unary("/s.S/Messages")(iter([b"a", b"b"])) == b"ab"
        assert list(anything.stream_stream("/s.S/Both")(iter([b"a", b"b"]))) == [b"a", b"b"]
        assert anything.unary_unary("/s.S/Unary").future(b"c").result(20) == b"c"
    calls = check(recorder, server, *KINDS, "Unary")
    assert not any(call.fault for call in calls)


def test_how_a_call_failed_is_said_and_metadata_of_its_own_is_kept(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORCHID_TOKEN", "secret")
    recorder = trace()
    with channel(server.address, recorder=recorder) as made:
        anything: Any = made
        with pytest.raises(grpc.RpcError):
            anything.unary_unary("/s.S/Refused")(b"a", metadata=(("x-own", "1"),))
        stream = anything.unary_stream("/s.S/Broken")(b"a")
        assert next(stream) == b"a"
        with pytest.raises(grpc.RpcError):
            next(stream)
    faults = [record.fault for record in recorder.records()[2:]]
    assert faults == ["RESOURCE_EXHAUSTED", "UNAVAILABLE"]
    (told,) = server.seen
    assert (told["x-own"], told["authorization"]) == ("1", "Bearer secret")
    assert told["traceparent"].startswith(f"00-{recorder.id}-")


def test_a_stream_that_is_cancelled_ends_its_span(server: Server) -> None:
    recorder, hold = trace(), threading.Event()

    def requests() -> Iterator[bytes]:
        yield b"a"
        hold.wait(20)

    with channel(server.address, recorder=recorder) as made:
        anything: Any = made
        stream = anything.stream_stream("/s.S/Both")(requests())
        assert next(stream) == b"a"
        stream.cancel()
        hold.set()
    assert recorder.records()[-1].fault == "CANCELLED"


async def test_calls_of_every_kind_are_spans_for_asyncio(server: Server) -> None:
    recorder = trace()

    async def two() -> AsyncIterator[bytes]:
        yield b"a"
        yield b"b"

    async with asyncio.timeout(60), aio_channel(server.address, recorder=recorder) as made:
        anything: Any = made
        assert await anything.unary_unary("/s.S/Unary")(b"a") == b"a"
        stream = anything.unary_stream("/s.S/Answers")(b"a")
        assert [piece async for piece in stream] == [b"a", b"a"]
        assert await anything.stream_unary("/s.S/Messages")(two()) == b"ab"
        both = anything.stream_stream("/s.S/Both")()
        await both.write(b"a")
        assert await both.read() == b"a"
        await both.done_writing()
        assert await both.code() is grpc.StatusCode.OK
        await ended(recorder, 4)
    calls = check(recorder, server, *KINDS)
    assert not any(call.fault for call in calls)


async def ended(recorder: ClientTrace, count: int) -> None:
    """Ends are told to coroutines, in a later turn of the loop."""
    for _ in range(20_000):
        if sum(call.done for call in recorder.calls) == count:
            return
        await asyncio.sleep(0.001)
    raise AssertionError(f"{count} calls never ended")


async def test_failures_and_cancels_are_said_for_asyncio(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORCHID_TOKEN", "secret")
    recorder = trace()
    async with asyncio.timeout(60), aio_channel(server.address, recorder=recorder) as made:
        anything: Any = made
        with pytest.raises(grpc.aio.AioRpcError):
            await anything.unary_unary("/s.S/Refused")(b"a", metadata=(("x-own", "1"),))
        stream = anything.stream_stream("/s.S/Both")()
        await stream.write(b"a")
        assert await stream.read() == b"a"
        stream.cancel()
        await ended(recorder, 2)
    faults = [record.fault for record in recorder.records()[2:]]
    assert faults == ["RESOURCE_EXHAUSTED", "CANCELLED"]
    told = server.seen[0]
    assert (told["x-own"], told["authorization"]) == ("1", "Bearer secret")


def test_a_share_of_calls_each_a_trace_is_kept(server: Server, tmp_path: Path) -> None:
    none, some = CallTraces(time.monotonic_ns, 0.0), CallTraces(time.monotonic_ns, most=2)
    for recorder in (none, some):
        with channel(server.address, recorder=recorder) as made:
            anything: Any = made
            for _ in range(3):
                anything.unary_unary("/s.S/Unary")(b"a")
        recorder.write(tmp_path, f"{LOAD}-0", 10**18)
    told = server.traceparents()
    assert [bool(each) for each in told] == [False] * 3 + [True, True, False]
    spans = read_latest(tmp_path)
    assert [f"00-{span.trace_id}-{span.span_id}-01" for span in spans] == told[3:5]
    assert {(span.name, span.process, span.parent_id) for span in spans} == {
        ("Unary", "load-0", "")
    }
    assert len({span.trace_id for span in spans}) == 2 and some.last_id == spans[-1].trace_id
