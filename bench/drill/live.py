"""A scene on a running cluster: every request at its moment, whatever became of those before it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import grpc

from bench.drill.scene import (
    LATE,
    LOST,
    MODEL,
    ON_TIME,
    REFUSED,
    TOKENS,
    Answered,
    Ask,
    Scene,
)
from protos.orchid.v1 import inference_pb2, inference_pb2_grpc

# Whatever is not an answer, by what the caller hears.
_WORDS = {
    grpc.StatusCode.RESOURCE_EXHAUSTED: REFUSED,
    grpc.StatusCode.FAILED_PRECONDITION: REFUSED,
    grpc.StatusCode.DEADLINE_EXCEEDED: LATE,
}
_ORDINARY = "good"
# What the tokenizer adds before and after the words.
_ADDED = 2


async def play(
    scene: Scene, address: str, deadline_ms: float, lose: Callable[[], None]
) -> list[Answered]:
    """What became of each request, in order; `lose` kills a worker where the scene says so."""
    async with grpc.aio.insecure_channel(address) as channel:
        stub: inference_pb2_grpc.InferenceAsyncStub = inference_pb2_grpc.InferenceStub(channel)
        await channel.channel_ready()
        begun = time.monotonic_ns()
        loss = asyncio.create_task(_later(scene.loses_at_s, lose)) if scene.loses_at_s else None
        running = []
        for ask in scene.asks:
            wait_ns = ask.at_ns - (time.monotonic_ns() - begun)
            if wait_ns > 0:
                await asyncio.sleep(wait_ns / 1e9)
            running.append(asyncio.create_task(_ask(stub, ask, deadline_ms)))
        found = list(await asyncio.gather(*running))
        if loss is not None:
            await loss
        return found


async def _later(seconds: float, happen: Callable[[], None]) -> None:
    await asyncio.sleep(seconds)
    await asyncio.to_thread(happen)


async def _ask(
    stub: inference_pb2_grpc.InferenceAsyncStub, ask: Ask, deadline_ms: float
) -> Answered:
    request = inference_pb2.InferRequest(
        model=MODEL,
        text=inference_pb2.TextInput(texts=[text_of(ask)]),
        request_class=inference_pb2.RequestClass(
            tenant=ask.tenant, request_class=ask.klass, variant=ask.variant
        ),
        deadline_ms=int(deadline_ms),
    )
    begun = time.monotonic_ns()
    try:
        answer = await stub.Infer(request, timeout=deadline_ms / 1e3)
    except grpc.aio.AioRpcError as error:
        return Answered(ask, _WORDS.get(error.code(), LOST))
    took_ms = (time.monotonic_ns() - begun) / 1e6
    provenance, outcome = answer.provenance, answer.outcome
    return Answered(
        ask,
        ON_TIME,
        provenance.variant,
        provenance.quality,
        outcome.charged_cpu_us / 1e3,
        took_ms,
    )


def text_of(ask: Ask) -> str:
    """As many words as the kind has tokens."""
    from worker.models.synthetic import HEAVY_WORD

    word = HEAVY_WORD if ask.heavy else _ORDINARY
    return " ".join([word] * (TOKENS[ask.kind] - _ADDED))
