"""One Execute stream: batches in, results out, and the end of what is no longer wanted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import grpc

from protos.codec import LARGE_BYTES, Part, framed
from protos.orchid.v1 import worker_pb2
from worker.errors import InvalidInput, WorkerError
from worker.host import ModelHost
from worker.jobs import Job
from worker.loop import EngineLoop
from worker.measures import BatchMeasures
from worker.records import Batch, BatchOutcome
from worker.rpc.convert import batch_from, batch_result_parts, output_bytes, write_batch_result
from worker.rpc.handlers import decoded
from worker.tracing import Tracing
from worker.watchdog import Watchdog

# Runs of up to this are not worth two threads' wake-ups and what these do to each other.
_IN_PLACE_US = 200.0
# Answered batches that may wait for a caller that does not read, before its input waits too.
MOST_UNREAD = 1024


@dataclass(frozen=True, slots=True)
class ExecuteParts:
    """What every stream of a worker shares. `load` reports the worker at this moment."""

    engine: EngineLoop
    host: ModelHost
    watchdog: Watchdog
    tracing: Tracing
    measures: BatchMeasures
    load: Callable[[], worker_pb2.WorkerLoad]
    now_ns: Callable[[], int]
    max_message_bytes: int


class ExecuteStream:
    """Lives on the event loop. Each item that was read is answered exactly once.

    Whoever carries its messages otherwise than by gRPC (`serve`) gives it what it receives, and
    takes what is ready when `rouse` was called.
    """

    def __init__(self, parts: ExecuteParts, rouse: Callable[[], None] | None = None) -> None:
        self._parts = parts
        # Part of a message is left to everything that is not an output tensor.
        self._max_bytes = parts.max_message_bytes * 15 // 16
        self._jobs: dict[int, Job] = {}
        self._unanswered = 0
        self._ready: list[BatchOutcome] = []
        self._awake = asyncio.Event()
        self._written = asyncio.Event()
        self._ending = False
        self._abandoned = False
        self._rouse = self._awake.set if rouse is None else rouse

    async def serve(self, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        """Reads and writes until both sides are done; the caller's end cancels its work."""
        reader = asyncio.create_task(self._read(context))
        try:
            while not self.over:
                await self._awake.wait()
                self._awake.clear()
                await self._write(context)
            if reader.done():
                # A fault of ours in reading ends the call with it.
                reader.result()
        finally:
            reader.cancel()
            self.abandon()

    def close(self) -> None:
        """Ends the stream once what it has accepted is answered."""
        self._ending = True
        self._rouse()

    def abandon(self) -> None:
        """Nobody waits for answers any more; what runs or waits is cancelled."""
        self._abandoned = True
        self.record(self._ready)
        self._ready.clear()
        self._cancel_all()

    @property
    def over(self) -> bool:
        """Whether all is answered of a stream that takes no more."""
        return self._ending and self._unanswered == 0 and not self._ready

    @property
    def unread(self) -> int:
        """Answered batches that wait for their caller."""
        return len(self._ready)

    def receive(self, requests: Sequence[worker_pb2.ExecuteRequest]) -> None:
        """Messages that came together."""
        arrived_ns = self._parts.now_ns()
        alone = len(requests) == 1 and len(requests[0].batches) == 1
        for request in requests:
            unknown = self._cancel(request.cancel_item_ids) if request.cancel_item_ids else ()
            for message in request.batches:
                self._accept(batch_from(message, arrived_ns), alone)
            if unknown:
                # A batch and its cancellation may leave the caller in one message.
                self._cancel(unknown)

    def take(self) -> tuple[list[BatchOutcome], int]:
        """As much of what is ready as fits one message, with the bytes of its outputs.

        Whoever takes it has it recorded, and writes its `response`.
        """
        ready, size, count = self._ready, 0, 0
        for outcome in ready:
            more = output_bytes(outcome)
            if count and size + more > self._max_bytes:
                break
            size += more
            count += 1
        outcomes = ready[:count]
        del ready[:count]
        return outcomes, size

    def record(self, written: Iterable[BatchOutcome]) -> None:
        """Counts and traces batches that are answered."""
        for outcome in written:
            self._parts.measures.record(outcome)
            self._parts.tracing.record(outcome, self._parts.now_ns)

    def response(
        self, outcomes: list[BatchOutcome], size: int
    ) -> worker_pb2.ExecuteResponse | bytes:
        """The message that answers them; large outputs are encoded already."""
        response = worker_pb2.ExecuteResponse(load=self._parts.load())
        if size < LARGE_BYTES:
            for outcome in outcomes:
                write_batch_result(response.results.add(), outcome, self._max_bytes)
            return response
        parts: list[Part] = [response.SerializeToString()]
        for outcome in outcomes:
            result = batch_result_parts(outcome, self._max_bytes)
            parts += framed(response.RESULTS_FIELD_NUMBER, result)
        return b"".join(parts)

    async def _write(self, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        while self._ready:
            outcomes, size = self.take()
            # What a caller has read is in the metrics: he may look at once.
            self.record(outcomes)
            await context.write(self.response(outcomes, size))
        self._written.set()

    async def _read(self, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        try:
            while (request := await context.read()) is not grpc.aio.EOF:
                self.receive((decoded(request),))
                while len(self._ready) > MOST_UNREAD:
                    self._written.clear()
                    await self._written.wait()
        finally:
            self._cancel_all()
            self.close()

    def _accept(self, batch: Batch, alone: bool) -> None:
        parts = self._parts
        batch = self._without_duplicates(batch)
        self._unanswered += 1
        try:
            loaded = parts.host.admit(batch.model, batch.variant)
        except WorkerError as error:
            job = parts.engine.refuse(batch, self._answer, error)
        else:
            in_place = alone and loaded.predict_us(batch.items) <= _IN_PLACE_US
            waiting = self._unanswered
            job = parts.engine.submit(batch, self._answer, in_place=in_place)
            if self._unanswered < waiting:
                # It ran in place, and is answered.
                return
        deadline_ns = 0
        for item in batch.items:
            if item.fault is None:
                self._jobs[item.item_id] = job
                deadline_ns = max(deadline_ns, item.deadline_ns)
        if deadline_ns:
            parts.watchdog.watch(deadline_ns)

    def _without_duplicates(self, batch: Batch) -> Batch:
        """Faults items whose id is in flight already: a cancel could not tell them apart."""
        ids = [item.item_id for item in batch.items]
        if len(set(ids)) == len(ids) and self._jobs.keys().isdisjoint(ids):
            return batch
        fault = InvalidInput("the item id is in flight already on this stream")
        known = set(self._jobs)
        items = []
        for item in batch.items:
            items.append(replace(item, fault=fault) if item.item_id in known else item)
            known.add(item.item_id)
        return replace(batch, items=tuple(items))

    def _cancel(self, item_ids: Iterable[int]) -> list[int]:
        """Cancels items in flight; returns the ids that are not."""
        by_job: dict[Job, list[int]] = {}
        unknown: list[int] = []
        for item_id in item_ids:
            job = self._jobs.get(item_id)
            if job is None:
                unknown.append(item_id)
            else:
                by_job.setdefault(job, []).append(item_id)
        for job, ids in by_job.items():
            self._parts.engine.cancel(job, ids)
        return unknown

    def _cancel_all(self) -> None:
        for job in set(self._jobs.values()):
            self._parts.engine.cancel(job)

    def _answer(self, outcome: BatchOutcome) -> None:
        self._unanswered -= 1
        jobs = self._jobs
        for item in outcome.batch.items:
            if item.fault is None:
                jobs.pop(item.item_id, None)
        if self._abandoned:
            self.record((outcome,))
            return
        self._ready.append(outcome)
        self._rouse()
