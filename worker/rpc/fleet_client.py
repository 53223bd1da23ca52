"""Membership: registers the worker with the control plane and reports, for as long as it lives."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import grpc
import numpy as np

from protos.dialling import SERVICES_KEEPALIVE, bearer, dial
from protos.orchid.v1 import common_pb2, fleet_pb2, fleet_pb2_grpc, worker_pb2
from protos.tls import Certificates
from worker.changes import Changes
from worker.ledger import MemoryTable
from worker.rpc.attachment import addresses_behind
from worker.rpc.memory import memory_to

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Backoff:
    """Waits between attempts: from `first_s`, by `factor`, up to `longest_s`, then jittered."""

    first_s: float = 0.05
    factor: float = 1.6
    longest_s: float = 2.0
    jitter: float = 0.3

    def wait_s(self, attempt: int, generator: np.random.Generator) -> float:
        """The wait before retry `attempt` (0 is the first)."""
        wait = min(self.longest_s, self.first_s * self.factor ** min(attempt, 64))
        return wait * float(generator.uniform(1 - self.jitter, 1 + self.jitter))


class FleetClient:
    """Keeps one Register stream to the control plane; it never gives up.

    `load` and `models` describe the worker at the moment they are called, `memory` as it was last
    read; `changes` counts the changes of the models. `welcomed` is told the id of the control
    plane that took it in. `untold_s` says for how many seconds the control plane has not had the
    load otherwise, with answers: while that is less than an interval, no report is needed.
    """

    def __init__(
        self,
        *,
        controlplane: str,
        hello: fleet_pb2.WorkerHello,
        load: Callable[[], worker_pb2.WorkerLoad],
        models: Callable[[], list[common_pb2.ModelDescription]],
        changes: Changes,
        report_interval_s: float,
        generator: np.random.Generator,
        max_message_bytes: int,
        welcomed: Callable[[str], None] = lambda controlplane_id: None,
        backoff: Backoff | None = None,
        certificates: Certificates | None = None,
        token_file: str = "",
        memory: Callable[[], MemoryTable] | None = None,
        untold_s: Callable[[], float] = lambda: math.inf,
    ) -> None:
        self._controlplane = controlplane
        self._hello = hello
        self._load = load
        self._models = models
        self._changes = changes
        self._report_interval_s = report_interval_s
        self._generator = generator
        self._welcomed = welcomed
        self._backoff = backoff or Backoff()
        self._certificates = certificates
        self._token_file = token_file
        self._memory = memory
        self._untold_s = untold_s
        self._options = (
            ("grpc.max_send_message_length", max_message_bytes),
            ("grpc.max_receive_message_length", max_message_bytes),
            *SERVICES_KEEPALIVE,
            ("grpc.enable_retries", 0),
        )
        self.registered = asyncio.Event()
        # Why the last report could not be made.
        self._fault = ""
        # What was logged last, so that each change of state is logged once.
        self._told = ""
        self._behind: frozenset[str] = frozenset()

    async def run(self) -> None:
        """Registers and reports; after a loss tries again, later each time, until cancelled."""
        attempt = 0
        while True:
            try:
                reason = await self._register()
            except grpc.aio.AioRpcError as error:
                reason = f"{error.code().name}: {error.details()}"
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
                # gRPC cancels a call whose next report could not be made, and says no more.
                reason = f"a report could not be made: {self._fault}"
                # The next one may fail as well: wait longer each time, welcome or not.
                self.registered.clear()
            except OSError as error:
                # A token that cannot be read now may be there in a moment.
                reason = str(error)
            if self.registered.is_set():
                self.registered.clear()
                attempt = 0
            self._tell(
                logging.WARNING, f"not registered with {self._controlplane}, trying on ({reason})"
            )
            await asyncio.sleep(self._backoff.wait_s(attempt, self._generator))
            attempt += 1

    async def _register(self) -> str:
        """One stream, from Hello to its end; returns why. Raises AioRpcError or OSError."""
        metadata = bearer(self._token_file)
        async with dial(self._controlplane, self._certificates, self._options) as channel:
            stub: fleet_pb2_grpc.FleetAsyncStub = fleet_pb2_grpc.FleetStub(channel)
            call = stub.Register(self._guarded_reports(), metadata=metadata)
            async for directive in call:
                if directive.WhichOneof("directive") == "reject":
                    return f"rejected: {directive.reject.reason}"
                if directive.WhichOneof("directive") == "welcome":
                    asked_s = directive.welcome.report_interval_ms / 1e3
                    if asked_s:
                        self._report_interval_s = min(self._report_interval_s, asked_s)
                    self._welcomed(directive.welcome.controlplane_id)
                    self.registered.set()
                    self._tell(logging.INFO, f"registered with {self._controlplane}")
                    await self._look_behind()
        return "the control plane ended the stream"

    async def _guarded_reports(self) -> AsyncIterator[fleet_pb2.WorkerReport]:
        try:
            async for report in self._reports():
                yield report
        except Exception as fault:
            self._fault = type(fault).__name__
            raise

    async def _reports(self) -> AsyncIterator[fleet_pb2.WorkerReport]:
        """Hello, models and memory whenever they changed, with the load; the load by itself when
        the control plane has not been told it for an interval.
        """
        yield fleet_pb2.WorkerReport(hello=self._hello)
        sent = -1
        told: MemoryTable | None = None
        while True:
            version = self._changes.version
            if version != sent:
                models = fleet_pb2.ModelList(models=self._models())
                yield fleet_pb2.WorkerReport(models=models)
                sent = version
            table = self._table()
            if table is not None and table is not told:
                yield fleet_pb2.WorkerReport(memory=memory_to(table))
                told = table
            yield fleet_pb2.WorkerReport(load=self._load())
            await self._rest(sent, told)

    async def _rest(self, sent: int, told: MemoryTable | None) -> None:
        """Until there is something to report."""
        left_s = self._report_interval_s
        while left_s > 0.0:
            if await self._changes.wait(sent, left_s) != sent or self._table() is not told:
                return
            left_s = self._report_interval_s - self._untold_s()

    def _table(self) -> MemoryTable | None:
        return None if self._memory is None else self._memory()

    async def _look_behind(self) -> None:
        """Says when the name of the control plane stands for several, each with its own queue."""
        behind = await addresses_behind(self._controlplane)
        if len(behind) > 1 and behind != self._behind:
            log.error(
                "%s stands for %d control planes (%s): each has the workers that happen to find it "
                "and queues for them alone; give each its own name and models",
                self._controlplane,
                len(behind),
                ", ".join(sorted(behind)),
            )
        self._behind = behind

    def _tell(self, level: int, text: str) -> None:
        state = text.partition(" (")[0]
        if state != self._told:
            self._told = state
            log.log(level, "%s", text)
