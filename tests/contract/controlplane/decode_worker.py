"""A decode worker's server in this process that generates by script, and a control plane for it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import psutil
from tokenizers import Tokenizer, models, pre_tokenizers

from controlplane.config import ControlPlaneConfig
from controlplane.dispatcher import Dispatcher
from controlplane.generation.lanes import Lanes
from controlplane.generation.prompts import Prompts
from controlplane.generation.service import Generations
from controlplane.preprocess import Preprocessor
from controlplane.registry import Registry
from controlplane.rpc.fleet import FleetServicer
from controlplane.rpc.fleet_status import StatusSource
from controlplane.rpc.repository import FleetRepository
from controlplane.rpc.server import ControlPlaneServer, Parts
from controlplane.rpc.services import service_handler
from controlplane.telemetry.telemetry import Telemetry
from protos.inference import oip_pb2_grpc
from protos.orchid.v1 import (
    common_pb2,
    fleet_pb2,
    fleet_pb2_grpc,
    inference_pb2,
    inference_pb2_grpc,
    worker_pb2,
)
from tests.contract.controlplane.fake_worker import SERVICE, Membership, until

WRITER, SHA = "writer", "cd" * 32
VOCABULARY = ["<s>", "</s>", "<user>", "<assistant>", "once", "upon", "a", "time", "system"]
TEMPLATE = (
    "{% for m in messages %}<{{ m['role'] }}> {{ m['content'] }} {% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def vocabulary_document() -> bytes:
    """A word tokenizer whose ids are positions in VOCABULARY; `<s>` stands for unknown words."""
    words = {word: index for index, word in enumerate(VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<s>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    document: str = tokenizer.to_str()
    return document.encode()


def writer(
    name: str = WRITER,
    *,
    variant: str = "writer-q4",
    precision: str = "q4",
    quality: float | None = None,
    prefill_us: float = 100.0,
    context: int = 64,
    template: str = TEMPLATE,
    begin: int | None = None,
    arena_tokens: int = 4096,
    ready: bool = True,
) -> common_pb2.ModelDescription:
    """A decoder of one variant."""
    evidence = [common_pb2.QualityEvidence(population="p", metric="agreement", value=quality or 0)]
    return common_pb2.ModelDescription(
        name=name,
        version="1",
        task="text-generation",
        manifest_digest="sha256:w",
        default_tokenizer="words",
        tokenizers=[common_pb2.Tokenizer(name="words", sha256=SHA)],
        variants=[
            common_pb2.VariantDescription(
                name=variant,
                layout="paged",
                precision=precision,
                tokenizer="words",
                quality=evidence if quality is not None else [],
                ready=ready,
                max_tokens=context,
                decode=common_pb2.DecodeProfile(
                    step_us=1000.0,
                    prefill_us_per_token=prefill_us,
                    sequence_us=200.0,
                    cached_us_per_token=1.0,
                    arena_tokens=arena_tokens,
                ),
            )
        ],
        state=common_pb2.READINESS_STATE_READY if ready else common_pb2.READINESS_STATE_LOADING,
        progress=1.0 if ready else 0.5,
        generation=common_pb2.GenerationSettings(
            chat_template=template,
            end_tokens=[1],
            begin_token=begin,
            vocabulary=len(VOCABULARY),
            context=context,
        ),
    )


Script = Callable[["DecodeWorker", worker_pb2.GenerateCall, Any], Awaitable[None]]


def admitted(call: worker_pb2.GenerateCall) -> worker_pb2.GenerateEvent:
    """The first event of a generation."""
    told = common_pb2.GenerationAdmitted(prompt_tokens=len(call.prompt), queue_us=5)
    return worker_pb2.GenerateEvent(admitted=told)


def delta(text: str, *token_ids: int, index: int = 0) -> worker_pb2.GenerateEvent:
    """A piece of an answer."""
    return worker_pb2.GenerateEvent(
        delta=common_pb2.GenerationDelta(index=index, text=text, token_ids=token_ids)
    )


def ended(
    call: worker_pb2.GenerateCall,
    tokens: int,
    reason: common_pb2.FinishReason.ValueType = common_pb2.FINISH_REASON_LENGTH,
) -> list[worker_pb2.GenerateEvent]:
    """The last two events of a generation with one answer."""
    finished = common_pb2.GenerationFinished(reason=reason, generated_tokens=tokens)
    usage = common_pb2.GenerationUsage(
        prompt_tokens=len(call.prompt), generated_tokens=tokens, first_token_us=900, total_us=1900
    )
    return [
        worker_pb2.GenerateEvent(finished=finished),
        worker_pb2.GenerateEvent(completed=usage),
    ]


async def echo(worker: DecodeWorker, call: worker_pb2.GenerateCall, context: Any) -> None:
    """Says the prompt again, token by token, as far as max_tokens goes."""
    await context.write(admitted(call))
    tokens = list(call.prompt)[: call.limits.max_tokens]
    for token in tokens:
        await context.write(delta(f"{VOCABULARY[token]} ", token))
    for event in ended(call, len(tokens)):
        await context.write(event)


async def silent(worker: DecodeWorker, call: worker_pb2.GenerateCall, context: Any) -> None:
    """Admits and never says a word."""
    await context.write(admitted(call))
    await asyncio.Event().wait()


async def endless(worker: DecodeWorker, call: worker_pb2.GenerateCall, context: Any) -> None:
    """Two tokens, then nothing."""
    await context.write(admitted(call))
    await context.write(delta("once ", 4))
    await context.write(delta("upon ", 5))
    await asyncio.Event().wait()


async def full(worker: DecodeWorker, call: worker_pb2.GenerateCall, context: Any) -> None:
    """Refuses, and says when to come back."""
    await context.abort(
        grpc.StatusCode.RESOURCE_EXHAUSTED, "the arena is full", (("retry-after-ms", "70"),)
    )


async def dying(worker: DecodeWorker, call: worker_pb2.GenerateCall, context: Any) -> None:
    """Breaks before it says anything."""
    await context.abort(grpc.StatusCode.UNAVAILABLE, "the engine is gone")


@dataclass(eq=False)
class DecodeWorker:
    """Runs `script` for each call; `open` counts the calls it holds now."""

    name: str = "d1"
    models: list[common_pb2.ModelDescription] = field(default_factory=lambda: [writer()])
    script: Script = echo
    cpu_model: str = "cpu"
    calls: list[worker_pb2.GenerateCall] = field(default_factory=list)
    remaining_s: list[float] = field(default_factory=list)
    open: int = 0
    written: int = 0

    async def Describe(
        self, request: worker_pb2.DescribeRequest, context: Any
    ) -> worker_pb2.DescribeResponse:
        described = []
        for each in self.models:
            copy = common_pb2.ModelDescription()
            copy.CopyFrom(each)
            for tokenizer in copy.tokenizers:
                tokenizer.document = vocabulary_document()
            described.append(copy)
        names = [model.name for model in self.models]
        return worker_pb2.DescribeResponse(
            worker_id=self.name, models=described, available_models=names
        )

    async def Generate(self, request: worker_pb2.GenerateCall, context: Any) -> None:
        self.calls.append(request)
        self.remaining_s.append(context.time_remaining())
        self.open += 1
        try:
            await self.script(self, request, context)
        finally:
            self.open -= 1


@dataclass
class Writers:
    """A control plane with all of its doors, and the means to add decode workers."""

    registry: Registry
    generations: Generations
    dispatcher: Dispatcher
    address: str
    channel: grpc.aio.Channel
    config: ControlPlaneConfig
    server: ControlPlaneServer
    servers: dict[str, grpc.aio.Server] = field(default_factory=dict)
    memberships: dict[str, Membership] = field(default_factory=dict)

    @property
    def inference(self) -> inference_pb2_grpc.InferenceAsyncStub:
        return inference_pb2_grpc.InferenceStub(self.channel)

    @property
    def oip(self) -> oip_pb2_grpc.GRPCInferenceServiceAsyncStub:
        return oip_pb2_grpc.GRPCInferenceServiceStub(self.channel)

    async def join(self, worker: DecodeWorker) -> Membership:
        """A worker registers and can be asked."""
        server = grpc.aio.server()
        server.add_generic_rpc_handlers([service_handler(SERVICE, worker)])
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        self.servers[worker.name] = server
        membership = Membership(worker, f"127.0.0.1:{port}", self.channel)  # type: ignore[arg-type]
        told = await membership.hello(worker_class=fleet_pb2.WORKER_CLASS_DECODE, threads=2)
        assert told.HasField("welcome"), told
        self.memberships[worker.name] = membership
        await until(lambda: self._attached(worker), f"{worker.name} is attached")
        return membership

    async def kill(self, worker: DecodeWorker) -> None:
        """The worker's process is gone: its calls break and its registration ends."""
        await self.servers.pop(worker.name).stop(None)
        self.memberships.pop(worker.name).call.cancel()

    async def leave(self, worker: DecodeWorker) -> None:
        """Only the registration ends."""
        self.memberships.pop(worker.name).call.cancel()
        await until(lambda: not self._attached(worker), f"{worker.name} left")

    async def load(self, worker: DecodeWorker, **load: Any) -> None:
        """The worker reports the state of its arena, and the report has been taken."""
        known = self.registry.session_of(worker.name)
        assert known is not None
        entry = worker_pb2.DecodeLoad(model=WRITER, **load)
        before = known.load
        await self.memberships[worker.name].report(worker_pb2.WorkerLoad(decode=[entry]))
        await until(lambda: known.load is not before, "the report is there")

    async def models(self, worker: DecodeWorker, *models: common_pb2.ModelDescription) -> None:
        """The worker reports that it has these models, and the report has been taken."""
        known = self.registry.session_of(worker.name)
        assert known is not None
        before = known.models
        await self.memberships[worker.name].models(*models)
        await until(lambda: known.models is not before, "the report is there")

    async def status(self) -> fleet_pb2.GetStatusResponse:
        stub: fleet_pb2_grpc.FleetAsyncStub = fleet_pb2_grpc.FleetStub(self.channel)
        return await stub.GetStatus(fleet_pb2.GetStatusRequest())

    async def at_rest(self) -> None:
        """Every gauge is back at zero."""

        def quiet() -> bool:
            return not any(self.generations.gauges().values())

        await until(quiet, f"all gauges are 0: {self.generations.gauges()}")
        assert not {n: v for n, v in (await self.status()).gauges.items() if v}

    def _attached(self, worker: DecodeWorker) -> bool:
        session = self.registry.session_of(worker.name)
        return session is not None and self.generations.lanes.lane(session.number) is not None


@asynccontextmanager
async def writers(
    *workers: DecodeWorker, telemetry: Telemetry | None = None, **config: Any
) -> AsyncIterator[Writers]:
    """A control plane with these decode workers."""
    settings = ControlPlaneConfig(
        **{"listen": "127.0.0.1:0", "report_interval_ms": 10_000, **config}
    )
    now_ns, loop = time.monotonic_ns, asyncio.get_running_loop()
    registry = Registry()
    dispatcher = Dispatcher(settings, registry, now_ns=now_ns, loop=loop)
    preprocessor = Preprocessor(registry, threads=1, max_queued=4, now_ns=now_ns)
    lanes = Lanes(
        registry, now_ns=now_ns, loop=loop, report_interval_ms=settings.report_interval_ms
    )
    generations = Generations(
        settings, registry, lanes, Prompts(preprocessor), now_ns=now_ns, telemetry=telemetry
    )
    source = StatusSource("cp", "1.2.3", now_ns(), preprocessor, psutil.Process())
    fleet = FleetServicer(settings, registry, dispatcher, generations, status=source, now_ns=now_ns)
    server = ControlPlaneServer(
        settings,
        Parts(
            queue=dispatcher,
            tokenizing=preprocessor,
            generations=generations,
            registry=registry,
            repository=FleetRepository(fleet),
            fleet=fleet,
            version="0.0.test",
            wall_ms=lambda: 1_700_000_000_000,
            telemetry=telemetry,
        ),
    )
    address = await server.start()
    async with grpc.aio.insecure_channel(address) as channel:
        house = Writers(registry, generations, dispatcher, address, channel, settings, server)
        try:
            for worker in workers:
                await house.join(worker)
            yield house
        finally:
            for membership in house.memberships.values():
                membership.call.cancel()
            for each in house.servers.values():
                await each.stop(None)
            generations.close()
            dispatcher.close()
            fleet.close()
            await server.stop(0)
            preprocessor.close()


def ask(text: str = "once upon a time", **fields: Any) -> inference_pb2.GenerateRequest:
    """A request for a text prompt, or for the prompt among the fields."""
    named = {"chat", "tokens"} & fields.keys()
    return inference_pb2.GenerateRequest(
        **{"model": WRITER, **({} if named else {"text": text}), **fields}
    )


def limits(**fields: Any) -> common_pb2.GenerationLimits:
    """Limits of a generation."""
    return common_pb2.GenerationLimits(**fields)


def chat(*turns: tuple[str, str]) -> inference_pb2.Chat:
    """A conversation of (role, content)."""
    return inference_pb2.Chat(
        messages=[inference_pb2.ChatMessage(role=role, content=text) for role, text in turns]
    )


def text_of(events: Iterable[inference_pb2.GenerateResponse]) -> str:
    """What the events say, in order."""
    return "".join(event.delta.text for event in events if event.HasField("delta"))


Generating = grpc.aio.UnaryStreamCall[inference_pb2.GenerateRequest, inference_pb2.GenerateResponse]


async def rest(call: Generating) -> list[inference_pb2.GenerateResponse]:
    """What a call still has to say; AioRpcError when it ends badly."""
    events: list[inference_pb2.GenerateResponse] = []
    await _read_into(call, events)
    return events


async def refusal(
    call: Generating,
) -> tuple[grpc.aio.AioRpcError, list[inference_pb2.GenerateResponse]]:
    """The status that a stream ends with, and what came before."""
    events: list[inference_pb2.GenerateResponse] = []
    try:
        await _read_into(call, events)
    except grpc.aio.AioRpcError as error:
        return error, events
    raise AssertionError("the call ended well")


async def _read_into(call: Generating, events: list[inference_pb2.GenerateResponse]) -> None:
    while isinstance(event := await call.read(), inference_pb2.GenerateResponse):
        events.append(event)
