"""A decode worker in this process, its client, and the plain loop its answers are held to."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from protos.orchid.v1 import common_pb2, worker_pb2
from tests.contract.worker.serving import PATIENCE_S, Served, serve
from worker.decode import DecodeEngine, SequenceStep
from worker.engine import Session
from worker.generation.lane import Lane
from worker.kv_arena import KvArena
from worker.models.manifest import load_manifest
from worker.models.synthetic_generator import tiny_generator_tokenizer
from worker.scheduling.blocks import blocks_for
from worker.services import DecodeService
from worker.stock_decode import StockDecodeEngine

MODEL = "tiny-chat"
CONTEXT = 512
TOKENIZER = tiny_generator_tokenizer()
END_TOKENS = (0, 2)


@contextlib.asynccontextmanager
async def generating(repository: Path, **changes: Any) -> AsyncIterator[Served]:
    """Serves the tiny generator; nothing is left of any generation when this ends."""
    settings = {"worker_class": "decode", "kv_precision": "fp32"} | changes
    async with serve(repository, (MODEL,), **settings) as served:
        yield served
        await settled(served)


def service_of(served: Served) -> DecodeService:
    assert isinstance(served.app.service, DecodeService)
    return served.app.service


@contextlib.asynccontextmanager
async def engine_held(served: Served) -> AsyncIterator[None]:
    """Occupies the engine thread, so that nothing is planned or run."""
    entered, gate = threading.Event(), threading.Event()

    def hold() -> None:
        entered.set()
        gate.wait(PATIENCE_S)

    future = service_of(served).engine.call(hold)
    await served.until(entered.is_set)
    try:
        yield
    finally:
        gate.set()
        await asyncio.wrap_future(future)


async def lane_of(served: Served) -> Lane:
    """The lane of the model; to be looked at on the engine thread only."""
    loop = service_of(served).engine
    (lane,) = await asyncio.wrap_future(loop.call(lambda: list(loop._lanes.values())))
    return lane


async def faults(served: Served) -> list[str]:
    """What scheduler and arena are not of one mind about."""
    lane = await lane_of(served)
    return await asyncio.wrap_future(service_of(served).engine.call(lane.faults))


async def settled(served: Served) -> None:
    """Waits until nothing is open, then holds both ledgers and every gauge to that."""
    service = service_of(served)
    await served.until(lambda: not any(_counts(served)))
    assert await faults(served) == []
    for lane in service.engine.loads:
        # What the prefix cache keeps is there for whoever wants the blocks.
        assert lane.state.free_blocks + lane.state.evictable_blocks == lane.state.total_blocks
    assert service.engine.state().expired_items_executed == 0


def _counts(served: Served) -> tuple[int, ...]:
    loop = service_of(served).engine
    state = loop.state()
    held = [lane.state for lane in loop.loads]
    return (
        state.queued_items,
        state.running_items,
        *(s.waiting + s.prefilling + s.decoding + s.pending_prompt_tokens for s in held),
    )


def call_of(
    prompt: Sequence[int],
    *,
    sampling: common_pb2.Sampling | None = None,
    generation_id: int = 0,
    model: str = MODEL,
    tenant: str = "",
    budget_us: int = 0,
    first_token_target_us: int = 0,
    **limits: Any,
) -> worker_pb2.GenerateCall:
    return worker_pb2.GenerateCall(
        generation_id=generation_id,
        model=model,
        prompt=prompt,
        sampling=sampling,
        limits=common_pb2.GenerationLimits(**limits),
        tenant=tenant,
        budget_us=budget_us,
        first_token_target_us=first_token_target_us,
    )


@dataclass
class Heard:
    """What came of one call: per answer its text, tokens and scores, and the other events."""

    text: dict[int, str] = field(default_factory=dict)
    tokens: dict[int, list[int]] = field(default_factory=dict)
    scores: dict[int, list[common_pb2.GeneratedToken]] = field(default_factory=dict)
    finished: dict[int, common_pb2.GenerationFinished] = field(default_factory=dict)
    admitted: common_pb2.GenerationAdmitted | None = None
    usage: common_pb2.GenerationUsage | None = None

    def add(self, event: worker_pb2.GenerateEvent) -> None:
        """One event; none comes after its answer's end or after the account of all."""
        assert self.usage is None
        kind = event.WhichOneof("event")
        if kind == "admitted":
            assert self.admitted is None and not self.text
            self.admitted = event.admitted
        elif kind == "delta":
            delta = event.delta
            assert delta.index not in self.finished
            self.text[delta.index] = self.text.get(delta.index, "") + delta.text
            self.tokens.setdefault(delta.index, []).extend(delta.token_ids)
            self.scores.setdefault(delta.index, []).extend(delta.logprobs)
        elif kind == "finished":
            assert event.finished.index not in self.finished
            self.finished[event.finished.index] = event.finished
        else:
            self.usage = event.completed


async def hear(served: Served, call: worker_pb2.GenerateCall) -> Heard:
    """Everything that a call brings, to its end."""
    heard = Heard()
    async with asyncio.timeout(PATIENCE_S):
        async for event in served.stub.Generate(call):
            heard.add(event)
    assert heard.usage is not None
    return heard


async def served_at_last(served: Served, call: worker_pb2.GenerateCall) -> Heard:
    """Everything that a call brings which a worker that stands still for a moment may refuse."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                return await hear(served, call)
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                    raise


async def refused(served: Served, call: worker_pb2.GenerateCall) -> grpc.aio.AioRpcError:
    """The status of a call that does not get to its end."""
    try:
        await hear(served, call)
    except grpc.aio.AioRpcError as error:
        return error
    raise AssertionError("the call was served")


class Plain:
    """Greedy decoding one sequence at a time, by nothing but the engine."""

    def __init__(self, repository: Path, variant: str = f"{MODEL}-fp32") -> None:
        manifest = load_manifest(repository / MODEL)
        generation, found = manifest.generation, manifest.variant(variant)
        assert generation is not None and found is not None
        kv = generation.kv
        self._arena = KvArena(
            layers=kv.layers,
            kv_heads=kv.kv_heads,
            head_dim=kv.head_dim,
            blocks=blocks_for(generation.context),
            half=False,
        )
        make: type[DecodeEngine] | type[StockDecodeEngine] = DecodeEngine
        if found.layout == "dense":
            make = StockDecodeEngine
        self._engine = make(
            Session(repository / MODEL / found.graph, share_weights=False),
            self._arena,
            vocabulary=generation.vocabulary,
            context=generation.context,
        )

    def tokens(
        self, prompt: Sequence[int], most: int, ends: Sequence[int] = END_TOKENS
    ) -> list[int]:
        """The most likely tokens after a prompt, up to one that ends them."""
        blocks = tuple(range(blocks_for(len(prompt) + most)))
        self._arena.acquire(blocks, 1)
        made: list[int] = []
        past, following = 0, list(prompt)
        while len(made) < most:
            step = self._engine.step([SequenceStep(following, past, blocks)])
            past += len(following)
            token = int(np.argmax(step.logits[0]))
            if token in ends:
                break
            made.append(token)
            following = [token]
        self._arena.release(blocks)
        return made


def text_of(tokens: Sequence[int]) -> str:
    text: str = TOKENIZER.decode(list(tokens))
    return text


def prompt_of(seed: int, length: int) -> list[int]:
    """Tokens of bytes and merges, none of them special."""
    draws = np.random.default_rng(seed).integers(3, TOKENIZER.get_vocab_size(), length)
    return [int(token) for token in draws]
