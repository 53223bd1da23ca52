"""A dispatcher on a virtual loop, with workers in memory that take the time they are told."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from controlplane.config import ControlPlaneConfig
from controlplane.dispatcher import Dispatcher
from controlplane.policy.profiles import VariantProfile
from controlplane.policy.records import (
    Answer,
    Request,
    RequestClass,
    Shape,
    TensorValue,
    TokenPayload,
)
from controlplane.records.recorder import RequestRecorder
from controlplane.registry import (
    ModelInfo,
    ModelState,
    QualityEvidence,
    Registry,
    TokenizerInfo,
    VariantInfo,
    WorkerIdentity,
    WorkerLoad,
    WorkerSession,
)
from controlplane.telemetry.telemetry import Telemetry
from controlplane.work import BatchDone, ItemDone, ItemStatus, WorkBatch
from tests.unit.controlplane.virtual_loop import VirtualLoop

MS = 1_000_000
TOKENIZER = "words"
SERVICE_MS = {"best": 10.0, "fast": 4.0}


def variant(
    name: str, quality: float, *, ready: bool = True, fixed_share: float = 0.0
) -> VariantInfo:
    """A variant of which `fixed_share` of the service does not depend on the tokens."""
    service_ns = SERVICE_MS[name] * MS
    return VariantInfo(
        name=name,
        layout="ragged",
        precision="fp32",
        tokenizer=TOKENIZER,
        inputs=(),
        outputs=(),
        quality=(QualityEvidence("test", "accuracy", quality, 100, quality, quality),),
        profile=VariantProfile(
            s0_ns=service_ns * fixed_share,
            s1_ns=service_ns * (1.0 - fixed_share) / 10,
            reference_tokens=10,
            p50_ns=service_ns,
        ),
        max_tokens=100,
        ready=ready,
    )


def model(
    name: str = "m",
    *,
    digest: str = "sha256:a",
    state: ModelState = ModelState.READY,
    fixed_share: float = 0.0,
) -> ModelInfo:
    return ModelInfo(
        name=name,
        version="1",
        task="text-classification",
        labels=("no", "yes"),
        manifest_digest=digest,
        default_tokenizer=TOKENIZER,
        primary_output="logits",
        tokenizers=(TokenizerInfo(TOKENIZER, "00"),),
        variants=(
            variant("best", 0.9, fixed_share=fixed_share),
            variant("fast", 0.8, fixed_share=fixed_share),
        ),
        state=state,
        progress=1.0,
    )


@dataclass(eq=False)
class MemoryWorker:
    """Runs one batch after another; `work.WorkerPort` of one attached session.

    `slowness` multiplies the predicted time, `status` is how items end, `mute` keeps
    results back until `speak`, `mixed` gives the items of a batch in another order. `logits` are
    what a variant answers to a request, where that matters. Runs take `run_bytes` and
    `token_bytes` for each token.
    """

    house: House
    session: WorkerSession
    slowness: float = 1.0
    status: ItemStatus = ItemStatus.OK
    mute: bool = False
    mixed: bool = False
    logits: Callable[[str, Request], tuple[float, ...]] | None = None
    run_bytes: int = 0
    token_bytes: int = 0
    received: list[WorkBatch] = field(default_factory=list)
    cancelled: list[int] = field(default_factory=list)
    executed: list[int] = field(default_factory=list)
    _waiting: list[tuple[WorkBatch, int]] = field(default_factory=list)
    _held_back: list[BatchDone] = field(default_factory=list)
    _running: bool = False

    def send(self, batch: WorkBatch) -> None:
        self.received.append(batch)
        self._waiting.append((batch, self.house.loop.now_ns()))
        self._next()

    def cancel(self, item_ids: Sequence[int]) -> None:
        self.cancelled.extend(item_ids)

    def speak(self) -> None:
        """Give the results that were kept back."""
        self.mute = False
        for done in self._held_back:
            self._give(done)
        self._held_back.clear()

    def _next(self) -> None:
        if self._running or not self._waiting:
            return
        batch, arrived = self._waiting.pop(0)
        now = self.house.loop.now_ns()
        items = tuple(zip(batch.item_ids, batch.requests, strict=True))
        alive = [
            (i, request)
            for i, request in items
            if i not in self.cancelled and request.deadline_ns > now
        ]
        ends = {
            i: ItemStatus.CANCELLED if i in self.cancelled else ItemStatus.EXPIRED for i, _ in items
        }
        ends |= {i: self.status for i, _ in alive}
        profile = self.session.models[batch.model].variant(batch.variant).profile
        assert profile is not None
        shapes = [request.shapes[TOKENIZER] for _, request in alive]
        run_ns = int(profile.predict(shapes[0], shapes[1:]) * self.slowness) if shapes else 0
        self.executed.extend(request.id for _, request in alive)
        done = BatchDone(
            id=batch.id,
            items=tuple(
                self._item(i, ends[i], batch) for i, _ in (reversed(items) if self.mixed else items)
            ),
            queue_ns=now - arrived,
            run_ns=run_ns,
            cpu_ns=run_ns,
            executed_items=len(alive),
            peak_bytes=self.run_bytes + self.token_bytes * sum(shape.tokens for shape in shapes),
        )
        self._running = True
        self.house.loop.call_later(run_ns / 1e9, self._end, done)

    def _item(self, item_id: int, status: ItemStatus, batch: WorkBatch) -> ItemDone:
        if status is not ItemStatus.OK:
            return ItemDone(item_id, status, (), "as the test wants")
        request = batch.requests[batch.item_ids.index(item_id)]
        output = TensorValue("logits", "int64", (1,), request.id.to_bytes(8, "little"))
        if self.logits is not None:
            row = self.logits(batch.variant, request)
            data = struct.pack(f"<{len(row)}f", *row)
            output = TensorValue("logits", "float32", (1, len(row)), data)
        return ItemDone(item_id, status, (output,))

    def _end(self, done: BatchDone) -> None:
        self._running = False
        if self.mute:
            self._held_back.append(done)
        else:
            self._give(done)
        self._next()

    def _give(self, done: BatchDone) -> None:
        self.house.dispatcher.heard(self.session)
        self.house.dispatcher.completed(self.session, done)


class House:
    """A dispatcher with its registry, on the running virtual loop."""

    def __init__(
        self,
        telemetry: Telemetry | None = None,
        records: RequestRecorder | None = None,
        **config: object,
    ) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        self.loop = loop
        self.config = ControlPlaneConfig(**config)  # type: ignore[arg-type]
        self.registry = Registry()
        self.dispatcher = Dispatcher(
            self.config,
            self.registry,
            now_ns=loop.now_ns,
            loop=loop,
            telemetry=telemetry,
            records=records,
        )
        self.workers: list[MemoryWorker] = []
        self._reporting: dict[int, asyncio.TimerHandle] = {}

    def join(
        self,
        name: str = "",
        *,
        models: tuple[ModelInfo, ...] = (),
        change: Callable[[MemoryWorker], None] = lambda worker: None,
    ) -> MemoryWorker:
        """A worker registers, is attached, and reports every 50 ms."""
        name = name or f"w{len(self.workers) + 1}"
        session = self.registry.join(
            WorkerIdentity(name, f"{name}:1", 1, "cpu", "avx2"), self.loop.now_ns()
        )
        worker = MemoryWorker(self, session)
        change(worker)
        self.workers.append(worker)
        changed = self.registry.report_models(session, models or (model(),))
        self.dispatcher.refresh(changed)
        self.dispatcher.attach(session, worker)
        self._report(session)
        return worker

    def leave(self, worker: MemoryWorker) -> None:
        """The worker's stream breaks."""
        self.silence(worker)
        worker.mute = True
        changed = self.registry.leave(worker.session)
        self.dispatcher.detach(worker.session)
        self.dispatcher.refresh(changed)

    def silence(self, worker: MemoryWorker) -> None:
        """The worker stops reporting."""
        self._reporting.pop(worker.session.number).cancel()

    def report(self, worker: MemoryWorker, load: WorkerLoad) -> None:
        """One report with this load."""
        self.registry.report_load(worker.session, load, self.loop.now_ns())
        self.dispatcher.heard(worker.session)

    def ask(
        self,
        deadline_ms: float = 100.0,
        *,
        tokens: int = 10,
        klass: RequestClass | None = None,
        name: str = "m",
    ) -> Request:
        """A request that arrives now."""
        now = self.loop.now_ns()
        return Request(
            id=self.dispatcher.next_id(),
            model=name,
            klass=klass or RequestClass(),
            shapes={TOKENIZER: Shape.of_lengths([tokens])},
            payload=TokenPayload({TOKENIZER: b"\0" * 4 * tokens}, {TOKENIZER: (tokens,)}),
            arrived_ns=now,
            deadline_ns=now + int(deadline_ms * MS),
        )

    def submit(self, deadline_ms: float = 100.0) -> asyncio.Future[Answer]:
        """Submit a plain request."""
        return self.dispatcher.submit(self.ask(deadline_ms))

    def at_rest(self) -> bool:
        """Nothing is in the house."""
        assert self.dispatcher.violations() == []
        return not any(self.dispatcher.gauges().values())

    async def pass_ms(self, ms: float) -> None:
        """Let virtual time go by."""
        await asyncio.sleep(ms / 1000)

    def close(self) -> None:
        """Stop every timer."""
        for handle in self._reporting.values():
            handle.cancel()
        self.dispatcher.close()

    def _report(self, session: WorkerSession) -> None:
        self.registry.report_load(session, session.load, self.loop.now_ns())
        self.dispatcher.heard(session)
        self._reporting[session.number] = self.loop.call_later(0.05, self._report, session)
