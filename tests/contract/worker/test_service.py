"""What a worker answers besides Execute: models, health, reflection, draining."""

from __future__ import annotations

import asyncio
import hashlib
import json
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from protos.orchid.v1 import common_pb2
from protos.orchid.v1 import worker_pb2 as pb
from tests.contract.worker.serving import PATIENCE_S, Served, Stream, one, serve
from worker.models.manifest import load_manifest

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


async def check(served: Served, service: str) -> int:
    stub = health_pb2_grpc.HealthStub(served.channel)
    response = await stub.Check(health_pb2.HealthCheckRequest(service=service))
    return int(response.status)


async def until_health(served: Served, service: str, wanted: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        stub = health_pb2_grpc.HealthStub(served.channel)
        call = stub.Watch(health_pb2.HealthCheckRequest(service=service))
        async for response in call:
            if response.status == wanted:
                call.cancel()
                return


async def load(served: Served, model: str, *variants: str) -> list[common_pb2.ModelDescription]:
    call = served.stub.Load(pb.LoadRequest(model=model, variants=variants))
    return [progress.model async for progress in call]


async def failure(call: object) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call  # type: ignore[misc]
    return error.value.code(), error.value.details() or ""


async def test_describe_tells_everything_a_control_plane_needs(repository: Path) -> None:
    async with serve(repository) as served:
        response = await served.stub.Describe(pb.DescribeRequest())
        assert response.worker_id == "under-test" and response.engine_version
        assert list(response.available_models) == [
            *("adder", "identity", "slow", "tiny", "tiny-padded")
        ]
        (model,) = response.models
        manifest = load_manifest(repository / "tiny")
        assert model.manifest_digest == manifest.digest
        assert (model.task, model.primary_output) == ("text-classification", "logits")
        assert list(model.labels) == ["negative", "positive"]
        assert model.state == common_pb2.READINESS_STATE_READY and model.progress == 1.0
        first, second = model.variants
        assert (first.name, second.name) == ("tiny-a", "tiny-b")
        assert first.ready and first.profile.p50_us > 0 and first.profile.samples > 0
        assert (first.layout, first.max_tokens, first.tokenizer) == ("ragged", 512, "words")
        assert first.quality[0].value == manifest.variants[0].quality[0].value
        assert model.tokenizers[0].document == b""

        asked = pb.DescribeRequest(models=["tiny", "tiny"], include_tokenizers=True)
        (again,) = (await served.stub.Describe(asked)).models
        document = again.tokenizers[0].document
        assert hashlib.sha256(document).hexdigest() == again.tokenizers[0].sha256
        assert json.loads(document)["model"]["type"] == "WordLevel"

        code, text = await failure(served.stub.Describe(pb.DescribeRequest(models=["huge"])))
        assert code == grpc.StatusCode.NOT_FOUND and "'huge'" in text and "tiny" in text


async def test_load_streams_progress_and_unload_lets_go(repository: Path) -> None:
    async with serve(repository, ("adder",)) as served:
        progress = await load(served, "tiny", "tiny-b")
        assert progress[-1].state == common_pb2.READINESS_STATE_READY
        assert [v.name for v in progress[-1].variants] == ["tiny-b"]
        assert [p.progress for p in progress] == sorted(p.progress for p in progress)
        await until_health(served, "tiny", SERVING)
        both = await load(served, "tiny")
        assert [(v.name, v.ready) for v in both[-1].variants] == [
            ("tiny-a", True),
            ("tiny-b", True),
        ]
        again = await load(served, "tiny")
        assert again[-1] == both[-1]
        await served.stub.Unload(pb.UnloadRequest(model="tiny"))
        assert [m.name for m in (await served.stub.Describe(pb.DescribeRequest())).models] == [
            "adder"
        ]
        assert (await load(served, "tiny", "tiny-a"))[-1].variants[0].ready


async def test_unload_finishes_what_was_accepted(repository: Path) -> None:
    async with serve(repository, ("tiny", "adder")) as served:
        await until_health(served, "tiny", SERVING)
        stream = Stream(served)
        async with served.engine_held():
            await stream.send(one(1))
            await stream.settled()
            unloading = asyncio.ensure_future(served.stub.Unload(pb.UnloadRequest(model="tiny")))
            await until_health(served, "tiny", NOT_SERVING)
            await stream.send(one(2))
            results = await stream.receive(1)
            assert results[2].status == pb.ITEM_STATUS_UNAVAILABLE
            assert "unloading" in results[2].message
            assert await check(served, "adder") == SERVING
        assert (await stream.receive(2))[1].status == pb.ITEM_STATUS_OK
        await unloading
        await stream.send(one(3))
        assert (await stream.receive(3))[3].status == pb.ITEM_STATUS_NOT_FOUND
        code, text = await failure(served.stub.Unload(pb.UnloadRequest(model="tiny")))
        assert code == grpc.StatusCode.NOT_FOUND and "adder" in text
        await stream.finish()


async def test_loads_that_cannot_work_say_why(repository: Path) -> None:
    async with serve(repository) as served:
        for request, code in (
            (pb.LoadRequest(model="huge"), grpc.StatusCode.NOT_FOUND),
            (pb.LoadRequest(model="tiny", variants=["x"]), grpc.StatusCode.NOT_FOUND),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as error:
                async for _ in served.stub.Load(request):
                    pass
            assert error.value.code() == code
            assert "tiny" in (error.value.details() or "")


async def test_warm_refits_while_serving(repository: Path) -> None:
    async with serve(repository) as served:
        stream = Stream(served)
        async with served.engine_held():
            warming = asyncio.ensure_future(served.stub.Warm(pb.WarmRequest(model="tiny")))
            await stream.send(one(1))
            await stream.settled()
        assert (await stream.receive(1))[1].status == pb.ITEM_STATUS_OK
        response = await warming
        assert response.model.state == common_pb2.READINESS_STATE_READY
        code, _ = await failure(served.stub.Warm(pb.WarmRequest(model="huge")))
        assert code == grpc.StatusCode.NOT_FOUND
        await stream.finish()


async def test_health_is_per_model(repository: Path) -> None:
    async with serve(repository) as served:
        for service in ("", "tiny", "orchid.v1.Worker"):
            await until_health(served, service, SERVING)
        code, _ = await failure(check(served, "adder"))
        assert code == grpc.StatusCode.NOT_FOUND
        async with served.engine_held():
            loading = asyncio.ensure_future(load(served, "adder"))
            await until_health(served, "adder", NOT_SERVING)
            assert await check(served, "tiny") == SERVING
            assert await check(served, "") == SERVING
        await loading
        await until_health(served, "adder", SERVING)
        await served.stub.Unload(pb.UnloadRequest(model="adder"))
        await served.stub.Unload(pb.UnloadRequest(model="tiny"))
        await until_health(served, "", NOT_SERVING)


async def test_bytes_that_are_no_message_are_the_callers_fault(
    repository: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serve(repository) as served:
        channel: Any = served.channel
        for method in ("Describe", "Unload", "Warm", "Drain"):
            call = channel.unary_unary(f"/orchid.v1.Worker/{method}")(b"\xff\xff")
            code, text = await failure(call)
            assert code == grpc.StatusCode.INVALID_ARGUMENT
            assert text == f"the message is not a valid orchid.v1.{method}Request"
        call = channel.unary_stream("/orchid.v1.Worker/Load")(b"\xff\xff")
        code, _ = await failure(call.read())
        assert code == grpc.StatusCode.INVALID_ARGUMENT
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_reflection_lists_and_describes(repository: Path) -> None:
    async with serve(repository) as served:

        def ask() -> tuple[set[str], list[str]]:
            with grpc.insecure_channel(served.address) as channel:
                database = ProtoReflectionDescriptorDatabase(channel)
                names = set(database.get_services())
                file = database.FindFileContainingSymbol("orchid.v1.Worker")
                return names, [method.name for method in file.service[0].method]

        services, methods = await asyncio.to_thread(ask)
        assert {"orchid.v1.Worker", "grpc.health.v1.Health"} <= services
        assert methods == ["Execute", "Generate", "Describe", "Load", "Unload", "Warm", "Drain"]


async def test_drain_refuses_new_work_finishes_the_old_and_then_answers(repository: Path) -> None:
    async with serve(repository) as served:
        stream = Stream(served)
        async with served.engine_held():
            await stream.send(one(1), one(2))
            await stream.settled()
            draining = asyncio.ensure_future(served.stub.Drain(pb.DrainRequest()))
            await until_health(served, "tiny", NOT_SERVING)
            await stream.send(one(3))
            results = await stream.receive(1)
            assert results[3].status == pb.ITEM_STATUS_UNAVAILABLE
            assert stream.messages[-1].load.draining
            assert not draining.done()
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await load(served, "adder")
            assert refused.value.code() == grpc.StatusCode.UNAVAILABLE
        response = await draining
        assert (response.finished_items, response.abandoned_items) == (2, 0)
        results = await stream.receive(3)
        assert results[1].status == results[2].status == pb.ITEM_STATUS_OK
        again = await served.stub.Drain(pb.DrainRequest())
        assert (again.finished_items, again.abandoned_items) == (0, 0)
        await stream.finish()


async def test_a_drain_that_takes_too_long_answers_what_it_abandons(repository: Path) -> None:
    async with serve(repository) as served:
        stream = Stream(served)
        async with served.engine_held():
            await stream.send(one(1), one(2))
            await stream.settled()
            response = await served.stub.Drain(pb.DrainRequest(timeout_ms=20, exit=True))
            assert (response.finished_items, response.abandoned_items) == (0, 2)
            results = await stream.receive(2)
        assert {result.status for result in results.values()} == {pb.ITEM_STATUS_UNAVAILABLE}
        async with asyncio.timeout(PATIENCE_S):
            await served.app.wait()


async def test_the_process_ends_on_demand_with_streams_open(repository: Path) -> None:
    async with serve(repository) as served:
        stream = Stream(served)
        await stream.send(one(1))
        await stream.receive(1)
        await served.stub.Drain(pb.DrainRequest(exit=True))
        async with asyncio.timeout(PATIENCE_S):
            await served.app.wait()
            await served.app.stop()
        await stream.finish()
        assert await stream.call.code() == grpc.StatusCode.OK


async def test_a_configured_model_that_is_not_there_is_an_error(repository: Path) -> None:
    with pytest.raises(Exception, match=r"unknown model 'tyni'.*tiny"):
        async with serve(repository, ("tyni",)):
            pass


async def test_an_address_that_is_taken_is_an_error(repository: Path) -> None:
    async with serve(repository) as served:
        with pytest.raises(OSError, match=served.address):
            async with serve(repository, listen=served.address):
                pass


async def test_a_unix_socket_serves_too(repository: Path, tmp_path: Path) -> None:
    listen = f"unix:{tmp_path / 'w.sock'}"
    async with serve(repository, listen=listen) as served:
        assert served.address == listen
        stream = Stream(served)
        await stream.send(one(1))
        assert (await stream.receive(1))[1].status == pb.ITEM_STATUS_OK
        await stream.finish()
