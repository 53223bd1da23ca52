"""A lane that breaks down: its model has failed wherever it is told of, until it loads anew."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from protos.orchid.v1 import common_pb2, worker_pb2
from tests.contract.worker.generating import (
    MODEL,
    call_of,
    generating,
    hear,
    lane_of,
    refused,
    service_of,
)
from tests.contract.worker.serving import Served, serve
from worker.models.synthetic_generator import build_tiny_generator

WHY = "variant 'tiny-chat-fp32' was lost: the lane failed with RuntimeError"


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("generators")
    build_tiny_generator(made, MODEL)
    build_tiny_generator(made, "other")
    return made


class Broken:
    """An engine without an arena, as after a fault of ours."""

    @property
    def arena(self) -> Any:
        raise RuntimeError("a fault of ours")


async def break_down(served: Served) -> None:
    """The next plan of the model's only lane fails, and that of a call that runs into it."""
    (await lane_of(served)).engine = Broken()  # type: ignore[assignment]
    error = await refused(served, call_of([5, 6, 7], max_tokens=3))
    assert error.code() is grpc.StatusCode.INTERNAL
    assert "the lane failed with RuntimeError" in str(error.details())


async def serves(served: Served, name: str) -> bool:
    stub = health_pb2_grpc.HealthStub(served.channel)
    told = await stub.Check(health_pb2.HealthCheckRequest(service=name))
    return bool(told.status == health_pb2.HealthCheckResponse.SERVING)


async def test_a_lost_lane_is_told_by_health_reports_and_refusals(repository: Path) -> None:
    async with generating(repository) as served:
        assert await serves(served, MODEL) and await serves(served, "")
        before = service_of(served).ledger.room().available
        await break_down(served)
        await served.until(lambda: not served.app.host.describe()[0].variants[0].ready)
        (model,) = (await served.stub.Describe(worker_pb2.DescribeRequest())).models
        assert (model.state, model.failure) == (common_pb2.READINESS_STATE_FAILED, WHY)
        assert not model.variants[0].ready
        # What a control plane is sent is made of the same.
        assert [each.failure for each in served.app._models()] == [WHY]
        assert not served.app.service.load().decode
        error = await refused(served, call_of([5]))
        assert error.code() is grpc.StatusCode.UNAVAILABLE and WHY in str(error.details())
        async for progress in served.stub.Load(worker_pb2.LoadRequest(model=MODEL)):
            last = progress.model
        assert (last.state, last.failure) == (common_pb2.READINESS_STATE_READY, "")
        assert (await hear(served, call_of([5], max_tokens=4, ignore_end=True))).usage is not None
        await served.until(lambda: service_of(served).ledger.room().available >= before // 2)


async def test_health_follows_a_lost_lane(repository: Path) -> None:
    async with serve(repository, (MODEL,), worker_class="decode") as served:
        await break_down(served)
        for name in (MODEL, ""):
            while await serves(served, name):
                pass


async def test_another_model_of_the_worker_goes_on(repository: Path) -> None:
    async with serve(repository, (MODEL, "other"), worker_class="decode") as served:
        loop = service_of(served).engine
        (lane,) = [each for each in loop._lanes.values() if each.model == MODEL]
        lane.engine = Broken()  # type: ignore[assignment]
        assert "RuntimeError" in str((await refused(served, call_of([5]))).details())
        states = {each.manifest.name: each.state.value for each in served.app.host.describe()}
        assert states == {MODEL: "failed", "other": "ready"}
        assert (await hear(served, call_of([5], model="other", max_tokens=2))).usage is not None
        assert await serves(served, "")


async def test_a_warm_up_does_not_bring_a_lost_lane_back(repository: Path) -> None:
    async with serve(repository, (MODEL,), worker_class="decode") as served:
        host = served.app.host
        loaded = host.admit(MODEL, "tiny-chat-fp32")
        model = host._models[MODEL]
        await break_down(served)
        await served.until(lambda: host.describe()[0].state.value == "failed")
        host._kind.serve(model, loaded, again=True)
        assert not service_of(served).engine._lanes
        assert (await refused(served, call_of([5]))).code() is grpc.StatusCode.UNAVAILABLE
