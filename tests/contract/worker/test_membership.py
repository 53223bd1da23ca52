"""Register, as a control plane sees it: reports, changes, losses."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protos.orchid.v1 import common_pb2, fleet_pb2, fleet_pb2_grpc
from protos.orchid.v1 import worker_pb2 as pb
from tests.contract.worker.serving import PATIENCE_S, Stream, one, serve
from worker.changes import Changes
from worker.rpc.fleet_client import Backoff, FleetClient


class Fleet(fleet_pb2_grpc.FleetServicer):
    """A control plane that only listens."""

    def __init__(self, reject: str = "") -> None:
        self.streams: list[list[fleet_pb2.WorkerReport]] = []
        self.reject = reject
        self._news = asyncio.Condition()

    async def Register(  # type: ignore[override]
        self, request_iterator: Any, context: Any
    ) -> None:
        reports: list[fleet_pb2.WorkerReport] = []
        self.streams.append(reports)
        if self.reject:
            refusal = fleet_pb2.Reject(reason=self.reject)
            await context.write(fleet_pb2.FleetDirective(reject=refusal))
            await self._tell()
            return
        welcome = fleet_pb2.Welcome(controlplane_id="test", report_interval_ms=20)
        await context.write(fleet_pb2.FleetDirective(welcome=welcome))
        async for report in request_iterator:
            reports.append(report)
            await self._tell()

    async def GetStatus(
        self, request: fleet_pb2.GetStatusRequest, context: Any
    ) -> fleet_pb2.GetStatusResponse:
        return fleet_pb2.GetStatusResponse()

    async def _tell(self) -> None:
        async with self._news:
            self._news.notify_all()

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S), self._news:
            await self._news.wait_for(holds)

    def models(self) -> list[common_pb2.ModelDescription]:
        """The models as they were told last."""
        lists = [r.models for r in self.streams[-1] if r.HasField("models")] if self.streams else []
        return list(lists[-1].models) if lists else []

    def loads(self) -> list[pb.WorkerLoad]:
        return [r.load for r in self.streams[-1] if r.HasField("load")] if self.streams else []


@contextlib.asynccontextmanager
async def control_plane(fleet: Fleet, listen: str) -> AsyncIterator[None]:
    server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
    fleet_pb2_grpc.add_FleetServicer_to_server(fleet, server)
    server.add_insecure_port(listen)
    await server.start()
    try:
        yield
    finally:
        await server.stop(None)


async def test_a_worker_introduces_itself_and_reports(repository: Path, tmp_path: Path) -> None:
    listen, fleet = f"unix:{tmp_path / 'cp.sock'}", Fleet()
    async with (
        control_plane(fleet, listen),
        serve(repository, controlplane=listen) as served,
    ):
        await fleet.until(lambda: len(fleet.loads()) > 3 and bool(fleet.models()))
        first, second, *_ = fleet.streams[0]
        assert first.hello.worker_id == "under-test"
        assert first.hello.address == served.address
        assert first.hello.worker_class == fleet_pb2.WORKER_CLASS_ENCODER
        assert first.hello.threads == 1 and first.hello.process_id > 0
        assert first.hello.simd and first.hello.cpu_model and first.hello.engine_version
        assert second.WhichOneof("report") == "models"
        assert not any(report.HasField("hello") for report in fleet.streams[0][1:])
        await fleet.until(lambda: bool(fleet.models()[0].variants[0].ready))
        assert all(tokenizer.document == b"" for tokenizer in fleet.models()[0].tokenizers)

        stream = Stream(served)
        async with served.engine_held():
            await stream.send(one(1), one(2))
            await fleet.until(lambda: fleet.loads()[-1].queued_items == 2)
        await stream.receive(2)
        await fleet.until(lambda: fleet.loads()[-1].completed_items == 2)
        await stream.finish()


async def test_changes_of_models_and_draining_are_told(repository: Path, tmp_path: Path) -> None:
    listen, fleet = f"unix:{tmp_path / 'cp.sock'}", Fleet()
    async with (
        control_plane(fleet, listen),
        serve(repository, controlplane=listen) as served,
    ):
        async for _ in served.stub.Load(pb.LoadRequest(model="adder")):
            pass
        await fleet.until(lambda: [m.name for m in fleet.models()] == ["adder", "tiny"])
        await served.stub.Unload(pb.UnloadRequest(model="tiny"))
        await fleet.until(lambda: [m.name for m in fleet.models()] == ["adder"])
        await served.stub.Drain(pb.DrainRequest())
        await fleet.until(lambda: fleet.loads()[-1].draining)


async def test_a_worker_outlives_its_control_plane_and_comes_back(
    repository: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "worker")
    listen = f"unix:{tmp_path / 'cp.sock'}"
    async with serve(repository, controlplane=listen) as served:
        for _ in range(3):
            fleet = Fleet()
            async with control_plane(fleet, listen):
                await fleet.until(lambda fleet=fleet: len(fleet.loads()) > 1)  # type: ignore[misc]
                assert fleet.streams[0][0].HasField("hello")
                assert fleet.models()[0].name == "tiny"
            # It goes on serving alone.
            stream = Stream(served)
            await stream.send(one(1))
            assert (await stream.receive(1))[1].status == pb.ITEM_STATUS_OK
            await stream.finish()
    told = [r.getMessage() for r in caplog.records if r.name.endswith("fleet_client")]
    registered = [text for text in told if text.startswith("registered with")]
    lost = [text for text in told if text.startswith("not registered")]
    # Once a change, however many attempts lie between.
    assert len(registered) == 3 and len(lost) in (3, 4)


async def test_a_rejected_worker_says_why_once_and_tries_on(
    repository: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    listen, fleet = f"unix:{tmp_path / 'cp.sock'}", Fleet(reject="the id is taken")
    async with control_plane(fleet, listen), serve(repository, controlplane=listen):
        await fleet.until(lambda: len(fleet.streams) >= 3)
        told = [r.getMessage() for r in caplog.records if r.name.endswith("fleet_client")]
        assert len(told) == 1 and "the id is taken" in told[0]
        fleet.reject = ""
        await fleet.until(lambda: len(fleet.loads()) > 0)


async def test_a_report_that_cannot_be_made_is_told_and_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    listen, fleet, asked = f"unix:{tmp_path / 'cp.sock'}", Fleet(), 0

    def models() -> list[common_pb2.ModelDescription]:
        nonlocal asked
        asked += 1
        if asked < 3:
            raise ValueError("out of range")
        return []

    client = FleetClient(
        controlplane=listen,
        hello=fleet_pb2.WorkerHello(worker_id="under-test"),
        load=pb.WorkerLoad,
        models=models,
        changes=Changes(),
        report_interval_s=0.02,
        generator=np.random.default_rng(1),
        max_message_bytes=1 << 20,
    )
    async with control_plane(fleet, listen):
        running = asyncio.create_task(client.run())
        await fleet.until(lambda: len(fleet.loads()) > 0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    told = [r.getMessage() for r in caplog.records if r.name.endswith("fleet_client")]
    assert any("a report could not be made: ValueError" in text for text in told)


async def test_load_that_answers_carry_is_not_reported_as_well(tmp_path: Path) -> None:
    listen, fleet = f"unix:{tmp_path / 'cp.sock'}", Fleet()
    changes, asked, often, since = Changes(), 0, asyncio.Event(), 0.0

    def untold_s() -> float:
        nonlocal asked
        asked += 1
        if asked > 5:
            often.set()
        return since

    client = FleetClient(
        controlplane=listen,
        hello=fleet_pb2.WorkerHello(worker_id="under-test"),
        load=pb.WorkerLoad,
        untold_s=untold_s,
        models=lambda: [],
        changes=changes,
        report_interval_s=0.005,
        generator=np.random.default_rng(1),
        max_message_bytes=1 << 20,
    )
    async with control_plane(fleet, listen):
        running = asyncio.create_task(client.run())
        async with asyncio.timeout(PATIENCE_S):
            await often.wait()
        assert len(fleet.loads()) == 1
        # What changes is reported at once, with the load.
        changes.notify()
        await fleet.until(lambda: len(fleet.loads()) == 2)
        since = 1.0
        await fleet.until(lambda: len(fleet.loads()) > 4)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running


@given(attempt=st.integers(0, 100_000), seed=st.integers(0, 100))
def test_waits_grow_to_a_bound_and_are_jittered(attempt: int, seed: int) -> None:
    backoff = Backoff()
    wait = backoff.wait_s(attempt, np.random.default_rng(seed))
    plain = min(backoff.longest_s, backoff.first_s * backoff.factor ** min(attempt, 64))
    assert plain * (1 - backoff.jitter) <= wait <= plain * (1 + backoff.jitter)


async def test_a_worker_tells_what_its_memory_is_for(repository: Path, tmp_path: Path) -> None:
    listen, fleet = f"unix:{tmp_path / 'cp.sock'}", Fleet()

    def ledgers() -> list[pb.MemoryLedger]:
        reports = fleet.streams[-1] if fleet.streams else []
        return [report.memory for report in reports if report.HasField("memory")]

    async with (
        control_plane(fleet, listen),
        serve(repository, controlplane=listen) as served,
    ):
        await fleet.until(
            lambda: any("tiny/tiny-a" in line.owner for each in ledgers() for line in each.lines)
        )
        last = ledgers()[-1]
        assert last.accounted_bytes == sum(line.bytes for line in last.lines)
        assert last.measured_bytes > 0 and last.available_bytes > 0 and last.limited_by
        described = await served.stub.Describe(pb.DescribeRequest())
        assert described.memory.measured_bytes > 0
