"""The real servers in this process, in front of a queue that answers from memory."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import grpc
import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from controlplane.config import ControlPlaneConfig
from controlplane.errors import Cancelled, ControlPlaneError
from controlplane.generation.lanes import Lanes
from controlplane.generation.prompts import Prompts
from controlplane.generation.service import Generations
from controlplane.pending import Waiter
from controlplane.policy.profiles import VariantProfile
from controlplane.policy.records import (
    Answer,
    Outcome,
    Provenance,
    Request,
    TensorPayload,
    TensorValue,
    TokenPayload,
)
from controlplane.preprocess import Preprocessor
from controlplane.registry import (
    ModelInfo,
    ModelState,
    Registry,
    TensorSpec,
    TokenizerInfo,
    VariantInfo,
    WorkerIdentity,
    WorkerSession,
)
from controlplane.rpc.server import ControlPlaneServer, Parts
from controlplane.security.house import OPEN, Security
from controlplane.telemetry.telemetry import Telemetry

WORDS = ["[UNK]", "[CLS]", "[SEP]", "good", "bad", "film", "plot", "ünïcode"]
MODEL, ADDER, ECHO = "tiny", "adder", "echo"
DIGEST = "sha256:0123"
PROFILE = VariantProfile(s0_ns=1e5, s1_ns=1e3, p50_ns=1e5)


def tokenizer_document() -> bytes:
    """A word tokenizer: `[CLS] words [SEP]`."""
    vocabulary = {word: index for index, word in enumerate(WORDS)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    document: str = tokenizer.to_str()
    return document.encode()


def text_model(name: str = MODEL, *, state: ModelState = ModelState.READY) -> ModelInfo:
    """A classifier with two variants and one tokenizer."""
    variants = tuple(
        VariantInfo(
            name=f"{name}-{each}",
            layout="ragged",
            precision="fp32",
            tokenizer="words",
            inputs=(TensorSpec("input_ids", "int64", (-1,)),),
            outputs=(TensorSpec("logits", "float32", (-1, 2)),),
            profile=PROFILE,
            max_tokens=64,
            ready=state is ModelState.READY,
        )
        for each in "ab"
    )
    return ModelInfo(
        name=name,
        version="3",
        task="text-classification",
        labels=("negative", "positive"),
        manifest_digest=DIGEST,
        default_tokenizer="words",
        primary_output="logits",
        tokenizers=(TokenizerInfo("words", "abc"),),
        variants=variants,
        state=state,
        progress=1.0 if state is ModelState.READY else 0.25,
    )


def tensor_model(
    name: str, inputs: Iterable[TensorSpec], outputs: Iterable[TensorSpec]
) -> ModelInfo:
    """A model of plain tensors with one variant."""
    variant = VariantInfo(
        name=f"{name}-only",
        layout="tensor",
        precision="fp32",
        tokenizer="",
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        profile=PROFILE,
        ready=True,
    )
    return ModelInfo(
        name=name,
        version="1",
        task="tensor",
        labels=(),
        manifest_digest=DIGEST,
        default_tokenizer="",
        primary_output=variant.outputs[0].name,
        tokenizers=(),
        variants=(variant,),
        state=ModelState.READY,
    )


ECHO_TYPES = (
    *("bool", "uint8", "int8", "int16", "int32", "int64"),
    *("float16", "float32", "float64", "string"),
)


def default_models() -> list[ModelInfo]:
    """One model of each kind; `echo` gives back one tensor of every element type."""
    echoed = [TensorSpec(dtype, dtype, (-1, 2)) for dtype in ECHO_TYPES]
    pair = [TensorSpec("a", "float32", (-1, 3)), TensorSpec("b", "float32", (-1, 3))]
    return [
        text_model(),
        tensor_model(ADDER, pair, [TensorSpec("sum", "float32", (-1, 3))]),
        tensor_model(ECHO, echoed, echoed),
    ]


def compute(request: Request) -> Answer:
    """What the in-memory queue answers: a function of every id and of every tensor."""
    payload = request.payload
    if isinstance(payload, TokenPayload):
        ids = np.frombuffer(payload.ids["words"], "<i4")
        rows = np.split(ids, np.cumsum(payload.lengths["words"])[:-1])
        logits = np.array([[row.sum(), (row * np.arange(1, len(row) + 1)).sum()] for row in rows])
        data = logits.astype("<f4").tobytes()
        outputs: tuple[TensorValue, ...]
        outputs = (TensorValue("logits", "float32", (len(rows), 2), data),)
        items, tokens, variant = len(rows), len(ids), f"{request.model}-a"
    else:
        assert isinstance(payload, TensorPayload)
        outputs, variant = payload.tensors, f"{request.model}-only"
        if request.model == ADDER:
            a, b = (np.frombuffer(tensor.data, "<f4") for tensor in payload.tensors)
            shape = payload.tensors[0].shape
            outputs = (TensorValue("sum", "float32", shape, (a + b).tobytes()),)
        items, tokens = 1, 0
    provenance = Provenance(
        model=request.model,
        model_version="3",
        variant=request.klass.variant or variant,
        manifest_digest=DIGEST,
        reason="most-accurate-in-reserve",
        approximation=False,
        quality=0.9,
        worker_id="w1",
    )
    outcome = Outcome(
        items=items,
        input_tokens=tokens,
        predicted_cpu_ns=1_000_000,
        charged_cpu_ns=2_000_000,
        preprocess_ns=request.preprocess_ns,
        queue_ns=30_000,
        execute_ns=400_000,
        total_ns=500_000,
        slack_at_dispatch_ns=7_000_000,
        slack_at_answer_ns=6_000_000,
        batch_size=1,
        dispatches=1,
    )
    return Answer(outputs, provenance, outcome, labels=("negative", "positive"))


@dataclass
class MemoryQueue:
    """Answers at once, or when told; remembers what it was given."""

    hold: bool = False
    refuse: ControlPlaneError | None = None
    fail: BaseException | None = None
    requests: list[Request] = field(default_factory=list)
    cancelled: list[Request] = field(default_factory=list)
    pending: dict[int, tuple[Request, asyncio.Future[Answer]]] = field(default_factory=dict)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    _ids: Iterable[int] = field(default_factory=lambda: itertools.count(1))

    def now_ns(self) -> int:
        return time.monotonic_ns()

    def next_id(self) -> int:
        return next(iter(self._ids))

    def submit(self, request: Request) -> asyncio.Future[Answer]:
        if self.refuse is not None:
            raise self.refuse
        self.requests.append(request)
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        if self.fail is not None:
            future.set_exception(self.fail)
        elif self.hold:
            self.pending[request.id] = request, future
        else:
            future.set_result(compute(request))
        self.changed.set()
        return future

    def attend(self, request: Request, waiter: Waiter) -> None:
        def ended(future: asyncio.Future[Answer]) -> None:
            if waiter.done():
                return
            if future.cancelled():
                waiter.set_exception(Cancelled("the request was cancelled by the server"))
            elif (error := future.exception()) is not None:
                waiter.set_exception(error)
            else:
                waiter.set_result(future.result())

        self.submit(request).add_done_callback(ended)

    def cancel(self, request: Request) -> None:
        self.cancelled.append(request)
        self.pending.pop(request.id, None)
        self.changed.set()

    def release(self, request_id: int) -> None:
        """Answer one held request."""
        request, future = self.pending.pop(request_id)
        future.set_result(compute(request))

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait, for a bounded time, until `condition` holds."""
        async with asyncio.timeout(60):
            while not condition():
                self.changed.clear()
                await self.changed.wait()


class MemoryRepository:
    """Remembers what was loaded and unloaded; knows one model more than is loaded."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.error: ControlPlaneError | None = None

    async def look(self) -> None:
        """Nothing to bring up to date."""

    def available(self) -> Iterable[str]:
        return (MODEL, "shelved")

    async def load(self, model: str) -> None:
        if self.error is not None:
            raise self.error
        self.calls.append(("load", model))

    async def unload(self, model: str) -> None:
        if self.error is not None:
            raise self.error
        self.calls.append(("unload", model))


@dataclass
class Door:
    """A running server, what stands behind it, and a channel to it."""

    address: str
    channel: grpc.aio.Channel
    server: ControlPlaneServer
    queue: MemoryQueue
    registry: Registry
    session: WorkerSession
    repository: MemoryRepository
    preprocessor: Preprocessor
    generations: Generations

    def serve(self, models: Iterable[ModelInfo]) -> None:
        """Replace the models of the one worker."""
        self.registry.report_models(self.session, models)


@asynccontextmanager
async def front_door(
    *,
    models: Iterable[ModelInfo] | None = None,
    config: ControlPlaneConfig | None = None,
    security: Security = OPEN,
    credentials: grpc.ChannelCredentials | None = None,
    telemetry: Telemetry | None = None,
) -> AsyncIterator[Door]:
    """The servers on a free port, with one worker's models in the registry.

    `credentials` are those of the channel, None for plain text.
    """
    registry = Registry()
    session = registry.join(WorkerIdentity("w1", "127.0.0.1:1", 1, "cpu", "avx2"), 0)
    registry.report_models(session, default_models() if models is None else models)
    registry.add_tokenizer("abc", tokenizer_document())
    queue, repository = MemoryQueue(), MemoryRepository()
    preprocessor = Preprocessor(registry, threads=1, max_queued=8, now_ns=queue.now_ns)
    settings = config or ControlPlaneConfig(listen="127.0.0.1:0")
    lanes = Lanes(
        registry,
        now_ns=queue.now_ns,
        loop=asyncio.get_running_loop(),
        report_interval_ms=settings.report_interval_ms,
    )
    prompts = Prompts(preprocessor)
    generations = Generations(settings, registry, lanes, prompts, now_ns=queue.now_ns)
    server = ControlPlaneServer(
        settings,
        Parts(
            queue=queue,
            tokenizing=preprocessor,
            generations=generations,
            registry=registry,
            repository=repository,
            fleet=None,
            version="0.0.test",
            wall_ms=lambda: 1_700_000_000_000,
            telemetry=telemetry,
        ),
        security,
    )
    address = await server.start()
    try:
        options = [("grpc.max_receive_message_length", -1)]
        made = (
            grpc.aio.insecure_channel(address, options=options)
            if credentials is None
            else grpc.aio.secure_channel(address, credentials, options=options)
        )
        async with made as channel:
            yield Door(
                address=address,
                channel=channel,
                server=server,
                queue=queue,
                registry=registry,
                session=session,
                repository=repository,
                preprocessor=preprocessor,
                generations=generations,
            )
    finally:
        await server.stop(0)
        preprocessor.close()
