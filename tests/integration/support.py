"""Clients and waiting for tests that run real processes."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import grpc
import psutil

from deploy.cluster import LocalCluster
from deploy.fleet import FleetError, fetch_status
from deploy.fleet_views import FleetStatus
from protos.orchid.v1 import inference_pb2, inference_pb2_grpc

TEXT = "the movie was good and the story moving"
POLL_S = 0.02
# A machine so busy that its only worker is silent for a second is no fault of either: with
# this setting of the control plane it takes a minute until the worker is suspect for it.
PATIENT = {"report_interval_ms": 3000}


def wait_for(condition: Callable[[], bool], what: str, timeout_s: float = 30.0) -> None:
    """Returns once the condition holds; fails the test, saying what was awaited, otherwise."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"after {timeout_s:.0f} s still not: {what}"
        time.sleep(POLL_S)


def gathered(address: str) -> None:
    """Returns once a control plane expects no workers on their way back to it any more."""
    with grpc.insecure_channel(address) as channel:
        stub = inference_pb2_grpc.InferenceStub(channel)

        def unknown() -> bool:
            try:
                stub.Infer(inference_pb2.InferRequest(model="nothing"), timeout=10.0)
            except grpc.RpcError as error:
                return bool(error.code() is grpc.StatusCode.NOT_FOUND)
            return False

        wait_for(unknown, "a model that nobody has is not found")


def settled(address: str) -> FleetStatus:
    """The status once every gauge is back at zero; fails with what is left over."""
    last: list[FleetStatus] = []

    def quiet() -> bool:
        try:
            status = fetch_status(address)
        except FleetError:
            return False
        last[:] = [status]
        return not leftovers(status)

    deadline = time.monotonic() + 20.0
    while not quiet():
        assert time.monotonic() < deadline, f"left over: {last and leftovers(last[0])}"
        time.sleep(POLL_S)
    return last[0]


def leftovers(status: FleetStatus) -> dict[str, float]:
    """Everything that must be zero when nothing is in flight, and is not."""
    found: dict[str, float] = {f"gauge {n}": v for n, v in status.gauges.items() if v}
    for pool in status.pools:
        found |= {f"{pool.model} queued": pool.queued, f"{pool.model} in flight": pool.in_flight}
        found[f"{pool.model} work"] = round(pool.predicted_work_ms, 3)
    for worker in status.workers:
        found |= {f"{worker.id} in flight": worker.in_flight, f"{worker.id} queued": worker.queued}
        found[f"{worker.id} running"] = worker.running
    found |= {"preprocessing": status.preprocess_queued + status.preprocess_running}
    return {name: value for name, value in found.items() if value}


def resident_mib(cluster: LocalCluster, name: str) -> float:
    """Resident memory of one process of the cluster."""
    return float(psutil.Process(cluster.pid(name)).memory_info().rss) / (1 << 20)


@dataclass(slots=True)
class Tally:
    """How calls ended."""

    answers: list[inference_pb2.InferResponse] = field(default_factory=list)
    codes: Counter[str] = field(default_factory=Counter)
    details: Counter[str] = field(default_factory=Counter)

    @property
    def ended(self) -> int:
        return sum(self.codes.values())


class Client:
    """An asynchronous caller of the native front door."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = inference_pb2_grpc.InferenceStub(channel)

    def call(
        self,
        model: str,
        *,
        text: str = TEXT,
        timeout_s: float | None = 10.0,
        variant: str = "",
        tenant: str = "",
    ) -> grpc.aio.UnaryUnaryCall[inference_pb2.InferRequest, inference_pb2.InferResponse]:
        """Starts one call."""
        request = inference_pb2.InferRequest(
            model=model,
            text=inference_pb2.TextInput(texts=[text]),
            request_class=inference_pb2.RequestClass(variant=variant, tenant=tenant),
        )
        return self._stub.Infer(request, timeout=timeout_s)

    async def finish(
        self,
        call: grpc.aio.UnaryUnaryCall[inference_pb2.InferRequest, inference_pb2.InferResponse],
        tally: Tally,
    ) -> None:
        """Waits for a call's end, whatever it is."""
        try:
            tally.answers.append(await call)
            tally.codes["OK"] += 1
        except grpc.aio.AioRpcError as error:
            tally.codes[error.code().name] += 1
            tally.details[f"{error.code().name}: {error.details()}"] += 1
        except asyncio.CancelledError:
            tally.codes["CANCELLED"] += 1

    async def many(
        self, model: str, texts: Sequence[str], *, timeout_s: float = 30.0, variant: str = ""
    ) -> list[inference_pb2.InferResponse]:
        """Answers in the order of the texts, at most 64 in flight; raises on any failure."""
        slots = asyncio.Semaphore(64)

        async def one(text: str) -> inference_pb2.InferResponse:
            async with slots:
                return await self.call(model, text=text, timeout_s=timeout_s, variant=variant)

        return list(await asyncio.gather(*(one(text) for text in texts)))

    async def answering(self, model: str, workers: int) -> set[str]:
        """The workers that answer, asked until there are so many of them or 50 crowds went by.

        Those of one crowd share runs and may all fit one worker.
        """
        seen: set[str] = set()
        for _ in range(50):
            answers = await self.many(model, ["good film"] * 60)
            seen |= {answer.provenance.worker_id for answer in answers}
            if len(seen) >= workers:
                break
        return seen


@asynccontextmanager
async def connected(address: str) -> AsyncIterator[Client]:
    """A client with a channel of its own."""
    async with grpc.aio.insecure_channel(address) as channel:
        yield Client(channel)
