"""Deadlines, cancels and refusals: every call ends, with the right status, at once."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

from controlplane.config import ClassConfig, ControlPlaneConfig
from controlplane.errors import (
    Cancelled,
    NotFound,
    Refused,
    TooLate,
    Unavailable,
    Unsatisfiable,
    WorkerFault,
)
from controlplane.rpc.asks import NO_CLASS, Ask
from controlplane.rpc.catalogue import Catalogue
from controlplane.rpc.intake import Intake
from controlplane.rpc.statistics import Statistics
from tests.contract.controlplane.front_door import MODEL, front_door
from tests.contract.controlplane.oip_client import (
    ids_request,
    raw_unary,
    refusal,
    stub,
    text_request,
)

CODE = grpc.StatusCode


async def budgets(*requests: Any, within: float | None = None, **config: Any) -> list[int]:
    """The time each request was given, in ns."""
    made = ControlPlaneConfig(listen="127.0.0.1:0", **config)
    async with front_door(config=made) as door:
        for request in requests:
            await stub(door).ModelInfer(request, timeout=within)
        return [r.deadline_ns - r.arrived_ns for r in door.queue.requests]


async def test_explicit_deadlines_in_both_units() -> None:
    assert await budgets(
        text_request("good", deadline_ms=250),
        text_request("good", deadline_ms=0.5),
        text_request("good", timeout=1500),
        text_request("good", timeout=1500, deadline_ms=1),
        text_request("good", timeout=0, deadline_ms=3),
        ids_request([[3]], deadline_ms=4, timeout=5000),
    ) == [250_000_000, 500_000, 1_500_000, 1_000_000, 3_000_000, 4_000_000]


async def test_the_nearer_of_call_and_explicit_deadline_holds() -> None:
    explicit, call = await budgets(
        text_request("good", deadline_ms=100), text_request("good", deadline_ms=90_000), within=40
    )
    assert explicit == 100_000_000
    assert 20e9 < call < 41e9  # the transport rounds a timeout up


async def test_without_a_deadline_the_configuration_gives_one() -> None:
    gold = {"gold": ClassConfig(deadline_ms=70)}
    requests = (text_request("a"), text_request("a", deadline_ms=0, request_class="gold"))
    assert await budgets(*requests) == [10_000_000_000] * 2
    assert await budgets(*requests, default_deadline_ms=300, classes=gold) == [
        300_000_000,
        70_000_000,
    ]


async def test_a_passed_deadline_is_never_queued() -> None:
    async with front_door() as door:
        error = await refusal(stub(door).ModelInfer(text_request("good", deadline_ms=-0.001)))
        assert error.code() is CODE.DEADLINE_EXCEEDED
        assert door.queue.requests == []


async def test_no_time_left_on_the_call_is_too_late() -> None:
    async with front_door() as door:
        intake = Intake(ControlPlaneConfig(), door.queue, door.preprocessor)
        view = Catalogue(door.registry, Statistics(lambda: 0)).view(MODEL)
        ask = Ask(view, NO_CLASS, deadline_ns=5_000_000, texts=("good",))
        with pytest.raises(TooLate):
            intake.deadline_ns(ask, 7, 0.0)
        assert intake.deadline_ns(ask, 7, 0.001) == 1_000_007
        assert intake.deadline_ns(ask, 7, None) == 5_000_007


async def test_the_caller_hears_of_its_deadline_and_the_work_is_cancelled() -> None:
    async with front_door() as door:
        door.queue.hold = True
        error = await refusal(stub(door).ModelInfer(text_request("good"), timeout=0.2))
        assert error.code() is CODE.DEADLINE_EXCEEDED
        await door.queue.until(lambda: len(door.queue.cancelled) == 1)


async def test_a_cancel_reaches_the_queue_at_once() -> None:
    async with front_door() as door:
        door.queue.hold = True
        call = stub(door).ModelInfer(text_request("good"))
        await door.queue.until(lambda: len(door.queue.requests) == 1)
        call.cancel()
        await door.queue.until(lambda: len(door.queue.cancelled) == 1)
        assert door.queue.cancelled == door.queue.requests


async def test_a_lost_connection_is_a_cancel() -> None:
    async with front_door() as door:
        door.queue.hold = True
        channel = grpc.aio.insecure_channel(
            door.address, options=[("grpc.use_local_subchannel_pool", 1)]
        )
        call = raw_unary(channel, "ModelInfer")(text_request("good").SerializeToString())
        await door.queue.until(lambda: len(door.queue.requests) == 1)
        await channel.close()
        await door.queue.until(lambda: len(door.queue.cancelled) == 1)
        assert call.done()


async def test_a_storm_of_cancels_leaves_nothing_behind() -> None:
    async with front_door() as door:
        door.queue.hold = True
        calls = [stub(door).ModelInfer(text_request("good")) for _ in range(500)]
        await door.queue.until(lambda: len(door.queue.requests) == 500)
        for call in calls:
            call.cancel()
        await door.queue.until(lambda: len(door.queue.cancelled) == 500)
        assert not door.queue.pending
        door.queue.hold = False
        await stub(door).ModelInfer(text_request("good"))


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (NotFound("gone"), CODE.NOT_FOUND),
        (Unsatisfiable("floor"), CODE.FAILED_PRECONDITION),
        (TooLate("late"), CODE.DEADLINE_EXCEEDED),
        (WorkerFault("worker w1 fell"), CODE.UNAVAILABLE),
        (Cancelled("drained"), CODE.CANCELLED),
        (Refused("full", 130), CODE.RESOURCE_EXHAUSTED),
        (Unavailable("nobody", 40), CODE.UNAVAILABLE),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
@pytest.mark.parametrize("when", ["refuse", "fail"])
async def test_domain_errors_become_statuses(error: Any, code: CODE, when: str) -> None:
    async with front_door() as door:
        setattr(door.queue, when, error)
        got = await refusal(stub(door).ModelInfer(text_request("good")))
    assert (got.code(), got.details()) == (code, str(error))
    trailers = dict(got.trailing_metadata() or ())
    retry = getattr(error, "retry_after_ms", 0)
    assert trailers.get("retry-after-ms") == (str(retry) if retry else None)
    assert trailers.get("grpc-retry-pushback-ms") == (str(retry) if retry else None)


async def test_a_fault_of_ours_is_internal_without_its_text(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with front_door() as door:
        door.queue.fail = RuntimeError("holds the text of the caller")
        error = await refusal(stub(door).ModelInfer(text_request("good")))
    assert error.code() is CODE.INTERNAL
    assert "text of the caller" not in (error.details() or "") + caplog.text
    assert "RuntimeError" in caplog.text


async def test_a_future_that_is_cancelled_inside_still_ends_the_call() -> None:
    """The handler sees CancelledError though its caller is still there."""
    async with front_door() as door:
        door.queue.hold = True
        call = stub(door).ModelInfer(text_request("good"))
        await door.queue.until(lambda: len(door.queue.requests) == 1)
        ((_, future),) = door.queue.pending.values()
        future.cancel()
        async with asyncio.timeout(60):
            error = await refusal(call)
    assert error.code() is CODE.CANCELLED
    assert error.details() == "the request was cancelled by the server"


async def test_stopping_lets_running_calls_finish() -> None:
    async with front_door() as door:
        door.queue.hold = True
        call = stub(door).ModelInfer(text_request("good"))
        await door.queue.until(lambda: len(door.queue.requests) == 1)
        stopping = asyncio.create_task(door.server.stop(20))
        door.queue.release(door.queue.requests[0].id)
        assert (await call).model_name == "tiny"
        await stopping


async def test_stopping_ends_what_outlasts_the_grace() -> None:
    async with front_door() as door:
        door.queue.hold = True
        call = stub(door).ModelInfer(text_request("good"))
        await door.queue.until(lambda: len(door.queue.requests) == 1)
        await door.server.stop(0.05)
        error = await refusal(call)
    assert error.code() in (CODE.CANCELLED, CODE.UNAVAILABLE)
