"""The driver of generations against a worker in this process whose behaviour is known."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import grpc
import pytest

from bench.generation.driver import GenerationRun
from bench.generation.plan import Door, GenerationPlan, draw_generations
from bench.generation.record import OK, GenerationRecord
from protos.orchid.v1 import common_pb2, inference_pb2, worker_pb2

REFUSED = grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]


class Doors:
    """Both Generate services: as many tokens as asked, two a message; every third is refused."""

    def __init__(self) -> None:
        self.calls: list[worker_pb2.GenerateCall | inference_pb2.GenerateRequest] = []

    async def worker(
        self,
        call: worker_pb2.GenerateCall,
        context: grpc.aio.ServicerContext[worker_pb2.GenerateCall, worker_pb2.GenerateEvent],
    ) -> AsyncIterator[worker_pb2.GenerateEvent]:
        self.calls.append(call)
        if len(self.calls) % 3 == 0:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "full")
        for delta in deltas(call.limits.max_tokens):
            yield worker_pb2.GenerateEvent(delta=delta)
        usage = common_pb2.GenerationUsage(cached_tokens=16, preemptions=1)
        yield worker_pb2.GenerateEvent(completed=usage)

    async def controlplane(
        self,
        call: inference_pb2.GenerateRequest,
        context: grpc.aio.ServicerContext[
            inference_pb2.GenerateRequest, inference_pb2.GenerateResponse
        ],
    ) -> AsyncIterator[inference_pb2.GenerateResponse]:
        self.calls.append(call)
        for delta in deltas(call.limits.max_tokens):
            yield inference_pb2.GenerateResponse(delta=delta)
        usage = common_pb2.GenerationUsage(cached_tokens=16, preemptions=1)
        yield inference_pb2.GenerateResponse(completed=inference_pb2.GenerateCompleted(usage=usage))


def deltas(tokens: int) -> list[common_pb2.GenerationDelta]:
    return [
        common_pb2.GenerationDelta(token_ids=[7] * min(2, tokens - at))
        for at in range(0, tokens, 2)
    ]


@pytest.fixture
async def doors() -> AsyncIterator[tuple[Doors, str]]:
    servicer, server = Doors(), grpc.aio.server()
    worker = grpc.unary_stream_rpc_method_handler(
        servicer.worker,
        worker_pb2.GenerateCall.FromString,
        worker_pb2.GenerateEvent.SerializeToString,
    )
    front = grpc.unary_stream_rpc_method_handler(
        servicer.controlplane,
        inference_pb2.GenerateRequest.FromString,
        inference_pb2.GenerateResponse.SerializeToString,
    )
    server.add_generic_rpc_handlers(
        (
            grpc.method_handlers_generic_handler("orchid.v1.Worker", {"Generate": worker}),
            grpc.method_handlers_generic_handler("orchid.v1.Inference", {"Generate": front}),
        )
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield servicer, f"127.0.0.1:{port}"
    await server.stop(None)


async def drive(plan: GenerationPlan) -> list[GenerationRecord]:
    return await GenerationRun(plan, draw_generations(plan)).execute(time.monotonic_ns)


@pytest.mark.parametrize("door", ["worker", "controlplane"])
async def test_every_generation_is_asked_as_drawn_and_noted(
    doors: tuple[Doors, str], door: Door
) -> None:
    servicer, target = doors
    plan = GenerationPlan(
        target, "m", 1000, rate_per_s=40.0, seconds=0.5, warmup_s=0.1, door=door, seed=3
    )
    drawn = draw_generations(plan)
    records = sorted(await drive(plan), key=lambda record: record.due_ns)
    assert [r.due_ns for r in records] == drawn.due_ns.tolist()
    assert [r.wanted_tokens for r in records] == drawn.answer_tokens.tolist()
    asked = [c.limits.max_tokens for c in servicer.calls]
    assert sorted(asked) == sorted(drawn.answer_tokens.tolist())
    assert all(c.limits.ignore_end for c in servicer.calls)
    answered = [r for r in records if r.code == OK]
    assert all(r.complete and r.first_ns >= r.due_ns for r in answered)
    assert {(r.cached_tokens, r.preemptions) for r in answered} == {(16, 1)}
    refused = [r for r in records if r.code == REFUSED]
    assert len(refused) == (len(servicer.calls) // 3 if door == "worker" else 0)
    assert len(answered) + len(refused) == len(records)


async def test_a_closed_loop_goes_on_until_its_end(doors: tuple[Doors, str]) -> None:
    plan = GenerationPlan(
        doors[1], "m", 1000, in_flight=2, seconds=0.4, warmup_s=0.1, door="controlplane"
    )
    records = await drive(plan)
    assert len(records) == len(doors[0].calls) > 2
    assert all(record.complete for record in records)
