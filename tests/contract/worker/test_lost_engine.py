"""An encoder worker whose engine loop broke down: its models have failed, wherever one asks."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from protos.orchid.v1 import common_pb2
from protos.orchid.v1 import worker_pb2 as pb
from tests.contract.worker.serving import Stream, batch, serve, token_item

REASON = "the engine loop failed with RuntimeError"


def fail() -> None:
    raise RuntimeError("a fault of ours")


async def test_a_lost_engine_is_told_by_answers_health_and_reports(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serve(repository) as served:
        stream = Stream(served)
        monkeypatch.setattr(served.encoder.engine, "_make_token", fail)
        await stream.send(batch(7, token_item(1, [2, 9, 3])))
        result = (await stream.receive(1))[1]
        assert result.status == pb.ITEM_STATUS_INTERNAL and REASON in result.message
        await served.until(lambda: served.app.host.describe()[0].state.value == "failed")
        (model,) = (await served.stub.Describe(pb.DescribeRequest())).models
        assert model.state == common_pb2.READINESS_STATE_FAILED and REASON in model.failure
        assert not any(variant.ready for variant in model.variants)
        # What a control plane is sent is made of the same.
        assert all(REASON in each.failure for each in served.app._models())
        health = health_pb2_grpc.HealthStub(served.channel)
        while (await health.Check(health_pb2.HealthCheckRequest(service="tiny"))).status == (
            health_pb2.HealthCheckResponse.SERVING
        ):
            pass
        with pytest.raises(grpc.aio.AioRpcError, match=REASON):
            async for _ in served.stub.Load(pb.LoadRequest(model="tiny")):
                pass
        await stream.finish()
