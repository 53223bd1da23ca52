"""The driver against a server in this process whose behaviour is known."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import cast

import grpc
import numpy as np
import pytest

from bench.load.driver import Run
from bench.load.metrics import measure
from bench.load.plan import LoadPlan, Workload
from bench.load.record import Records
from bench.load.schedule import draw_schedule
from protos.orchid.v1 import inference_pb2, inference_pb2_grpc

WORKLOAD = Workload(("yes", "no"), (1, 0))
Context = grpc.aio.ServicerContext[inference_pb2.InferRequest, inference_pb2.InferResponse]
GenerateContext = grpc.aio.ServicerContext[
    inference_pb2.GenerateRequest, inference_pb2.GenerateResponse
]
StreamContext = grpc.aio.ServicerContext[
    inference_pb2.InferRequest, inference_pb2.InferStreamResponse
]


class Server(inference_pb2_grpc.InferenceServicer):
    """Answers with the right label; stands still while `gate` is cleared."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        self.refuse = False
        self.deadlines: list[float] = []

    async def Infer(
        self, request: inference_pb2.InferRequest, context: Context
    ) -> inference_pb2.InferResponse:
        remaining = cast("float | None", context.time_remaining())
        if remaining is not None:
            self.deadlines.append(remaining)
        await self.gate.wait()
        if self.refuse:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "full")
        return answer(request)

    async def StreamInfer(
        self, request_iterator: AsyncIterator[inference_pb2.InferRequest], context: StreamContext
    ) -> AsyncIterator[inference_pb2.InferStreamResponse]:
        async for request in request_iterator:
            self.deadlines.append(request.deadline_ms)
            if self.refuse:
                yield inference_pb2.InferStreamResponse(
                    request_id=request.request_id,
                    error=inference_pb2.InferError(code=8, message="full"),
                )
            else:
                yield inference_pb2.InferStreamResponse(
                    request_id=request.request_id, response=answer(request)
                )

    def Generate(
        self, request: inference_pb2.GenerateRequest, context: GenerateContext
    ) -> AsyncIterator[inference_pb2.GenerateResponse]:
        raise NotImplementedError("the driver asks encoders")


def answer(request: inference_pb2.InferRequest) -> inference_pb2.InferResponse:
    index = int(request.text.texts[0] == "yes")
    return inference_pb2.InferResponse(
        classifications=[inference_pb2.Classification(index=index)],
        provenance=inference_pb2.Provenance(variant="v"),
    )


@pytest.fixture
async def server() -> AsyncIterator[tuple[Server, str]]:
    servicer = Server()
    grpc_server = grpc.aio.server()
    inference_pb2_grpc.add_InferenceServicer_to_server(servicer, grpc_server)
    port = grpc_server.add_insecure_port("127.0.0.1:0")
    await grpc_server.start()
    yield servicer, f"127.0.0.1:{port}"
    await grpc_server.stop(None)


def plan(target: str, **settings: object) -> LoadPlan:
    values = {"duration_s": 0.6, "warmup_s": 0.2, "rate_per_s": 200.0, "drain_s": 2.0, **settings}
    return LoadPlan(target=target, model="m", **values)  # type: ignore[arg-type]


async def drive(chosen: LoadPlan) -> Records:
    return await Run(chosen, WORKLOAD, draw_schedule(chosen, WORKLOAD)).execute(time.monotonic_ns)


@pytest.mark.parametrize("stream", [False, True])
async def test_every_due_request_is_sent_and_its_answer_kept(
    server: tuple[Server, str], stream: bool
) -> None:
    chosen = plan(server[1], stream=stream, deadline_ms=5000.0)
    records = await drive(chosen)
    result = measure(chosen, WORKLOAD, records)
    assert np.all(records.code == 0) and np.all(records.sent_ns >= records.due_ns)
    assert result.offered > 50 and result.accuracy == 1.0
    assert result.variant_share == {"v": 1.0}
    assert len(server[0].deadlines) == len(records.due_ns)
    assert max(server[0].deadlines) <= (5000 if stream else 5.1)  # the wire rounds timeouts up


@pytest.mark.parametrize("stream", [False, True])
async def test_a_refusal_keeps_its_code(server: tuple[Server, str], stream: bool) -> None:
    server[0].refuse = True
    chosen = plan(server[1], stream=stream)
    result = measure(chosen, WORKLOAD, await drive(chosen))
    assert result.outcomes == {"RESOURCE_EXHAUSTED": result.offered}
    assert result.examples == {"RESOURCE_EXHAUSTED": "full"}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_closed_loop_keeps_its_concurrency_busy(
    server: tuple[Server, str], stream: bool
) -> None:
    chosen = plan(server[1], stream=stream, mode="closed", concurrency=3)
    result = measure(chosen, WORKLOAD, await drive(chosen))
    assert result.answered > 20 and result.outcomes == {"OK": result.offered}


async def test_a_stall_is_charged_to_every_request_due_in_it(server: tuple[Server, str]) -> None:
    """Coordinated omission would show one slow request; here all that were due wait."""
    servicer, target = server
    chosen = plan(target, warmup_s=0.0, duration_s=1.0)

    async def stall() -> None:
        servicer.gate.clear()
        await asyncio.sleep(0.5)
        servicer.gate.set()

    stalled = asyncio.create_task(stall())
    records = await drive(chosen)
    await stalled
    latency = (records.done_ns - records.due_ns) / 1e9
    early = records.due_ns < 0.2e9
    assert early.sum() > 10
    assert np.median(latency[early]) > 0.15


async def test_a_request_without_an_end_is_counted_as_such(server: tuple[Server, str]) -> None:
    server[0].gate.clear()
    chosen = plan(server[1], duration_s=0.3, warmup_s=0.0, drain_s=0.1)
    result = measure(chosen, WORKLOAD, await drive(chosen))
    assert result.outcomes == {"NO_ANSWER": result.offered}
    server[0].gate.set()
