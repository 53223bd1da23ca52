"""A worker takes work from the control plane it belongs to, and from no second one."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import grpc
import pytest

from protos.attachment import CONTROLPLANE_KEY
from protos.orchid.v1 import worker_pb2 as pb
from tests.contract.worker.serving import PATIENCE_S, Served, one, serve
from tests.contract.worker.test_membership import Fleet, control_plane
from worker.rpc import attachment
from worker.rpc.attachment import addresses_behind


def stream_of(served: Served, controlplane: str) -> Any:
    """An Execute stream as a control plane of this id opens it."""
    return served.stub.Execute(metadata=((CONTROLPLANE_KEY, controlplane),))


async def answered(stream: Any, item_id: int) -> int:
    """The status of an item that is sent on a stream."""
    await stream.write(pb.ExecuteRequest(batches=[one(item_id)]))
    async with asyncio.timeout(PATIENCE_S):
        response = await stream.read()
    return int(response.results[0].items[0].status)


async def test_work_of_a_second_control_plane_is_refused(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attachment, "_PATIENCE_S", 0.05)
    listen, fleet = f"unix:{tmp_path / 'cp.sock'}", Fleet()
    async with (
        control_plane(fleet, listen),
        serve(repository, controlplane=listen) as served,
    ):
        await fleet.until(lambda: len(fleet.loads()) > 0)
        own = stream_of(served, "test")
        assert await answered(own, 1) == pb.ITEM_STATUS_OK
        with pytest.raises(grpc.aio.AioRpcError, match="belongs to control plane 'test'") as caught:
            await stream_of(served, "another").read()
        assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert await answered(own, 2) == pb.ITEM_STATUS_OK
        await own.done_writing()


async def test_the_stream_of_the_control_plane_before_ends_with_the_next_welcome(
    repository: Path,
) -> None:
    async with serve(repository) as served:
        servicer = served.app.service.servicer
        servicer.welcomed("first")
        before = stream_of(served, "first")
        bench = served.stub.Execute()
        assert await answered(before, 1) == await answered(bench, 2) == pb.ITEM_STATUS_OK
        # The call of the next one overtakes its welcome, and waits for it.
        after = stream_of(served, "second")
        await after.write(pb.ExecuteRequest(batches=[one(3)]))
        servicer.welcomed("second")
        async with asyncio.timeout(PATIENCE_S):
            assert await before.read() is grpc.aio.EOF
            response = await after.read()
        assert response.results[0].items[0].status == pb.ITEM_STATUS_OK
        assert await answered(bench, 4) == pb.ITEM_STATUS_OK
        for stream in (after, bench):
            await stream.done_writing()


async def test_a_name_of_several_control_planes_is_told(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    async def two(target: str) -> frozenset[str]:
        return frozenset(("10.0.0.1", "10.0.0.2"))

    caplog.set_level(logging.ERROR, "worker")
    monkeypatch.setattr("worker.rpc.fleet_client.addresses_behind", two)
    listen, fleet = f"unix:{tmp_path / 'cp.sock'}", Fleet()
    async with control_plane(fleet, listen), serve(repository, controlplane=listen):
        await fleet.until(lambda: len(fleet.loads()) > 1)
    told = [r.getMessage() for r in caplog.records if "control planes" in r.getMessage()]
    assert len(told) == 1 and "stands for 2 control planes (10.0.0.1, 10.0.0.2)" in told[0]


async def test_only_names_have_several_hosts_behind_them() -> None:
    assert await addresses_behind("unix:/tmp/socket") == frozenset()
    assert await addresses_behind("127.0.0.1:8900") == {"127.0.0.1"}
    assert await addresses_behind("[::1]:8900") in ({"::1"}, frozenset())
    assert len(await addresses_behind("localhost:8900")) == 1
    assert await addresses_behind("no-such-host.invalid:8900") == frozenset()
