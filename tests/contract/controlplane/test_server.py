"""What every service of the port shares: message limit, health, reflection, binding."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from controlplane.config import ControlPlaneConfig
from controlplane.registry import ModelState
from tests.contract.controlplane.front_door import MODEL, Door, front_door, text_model
from tests.contract.controlplane.oip_client import raw_unary, refusal, stub, text_request

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


def health(door: Door) -> Any:
    return health_pb2_grpc.HealthStub(door.channel)


async def test_a_message_over_the_limit_is_refused_at_the_edge() -> None:
    config = ControlPlaneConfig(listen="127.0.0.1:0", max_message_bytes=100_000)
    async with front_door(config=config) as door:
        error = await refusal(stub(door).ModelInfer(text_request("x" * 200_000)))
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "100000" in (error.details() or "")
        stream = stub(door).ModelStreamInfer()
        await stream.write(text_request("x" * 200_000))
        assert await stream.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "100000" in (await stream.details() or "")
        assert (await stub(door).ModelInfer(text_request("good"))).model_name == MODEL


async def test_headers_over_the_limit_are_refused_at_the_edge() -> None:
    config = ControlPlaneConfig(listen="127.0.0.1:0", max_metadata_bytes=4096)
    async with front_door(config=config) as door:
        large = (("x-large", "v" * 8192),)
        error = await refusal(stub(door).ModelInfer(text_request("good"), metadata=large))
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert (await stub(door).ModelInfer(text_request("good"))).model_name == MODEL


async def test_calls_beyond_the_limit_of_a_connection_wait_in_their_client() -> None:
    config = ControlPlaneConfig(listen="127.0.0.1:0", max_concurrent_streams=1)
    async with front_door(config=config) as door:
        stream: Any = stub(door).ModelStreamInfer()
        await stream.write(text_request("good"))
        assert (await stream.read()).error_message == ""
        error = await refusal(stub(door).ModelInfer(text_request("good"), timeout=0.2))
        assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert len(door.queue.requests) == 1
        await stream.done_writing()
        assert await stream.code() is grpc.StatusCode.OK
        assert (await stub(door).ModelInfer(text_request("good"))).model_name == MODEL


async def test_a_text_that_cannot_fit_is_refused_unread() -> None:
    async with front_door() as door:
        error = await refusal(stub(door).ModelInfer(text_request("good " * 200_000)))
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "has 1000000 characters, and one of 64 tokens has at most 8192" in (
            error.details() or ""
        )


async def test_health_is_per_model() -> None:
    loading = text_model("other", state=ModelState.LOADING)
    async with front_door(models=[text_model(), loading]) as door:

        async def check(service: str) -> int:
            response = await health(door).Check(health_pb2.HealthCheckRequest(service=service))
            return int(response.status)

        for service in ("", MODEL, "inference.GRPCInferenceService", "orchid.v1.Inference"):
            assert await check(service) == SERVING
        assert await check("other") == NOT_SERVING
        error = await refusal(health(door).Check(health_pb2.HealthCheckRequest(service="nope")))
        assert error.code() is grpc.StatusCode.NOT_FOUND
        assert "'other'" in (error.details() or "")
        door.serve([loading])
        assert await check("") == NOT_SERVING
        assert await check("orchid.v1.Fleet") == SERVING


async def test_health_watch_tells_every_change() -> None:
    async with front_door(models=[]) as door:
        call = health(door).Watch(health_pb2.HealthCheckRequest(service=MODEL))
        async with asyncio.timeout(60):
            seen = [(await call.read()).status]
            door.serve([text_model(state=ModelState.WARMING)])
            seen.append((await call.read()).status)
            door.serve([text_model()])
            seen.append((await call.read()).status)
            stopping = asyncio.create_task(door.server.stop(10))
            seen.append((await call.read()).status)
            assert await call.read() is grpc.aio.EOF
            await stopping
    assert seen == [UNKNOWN, NOT_SERVING, SERVING, NOT_SERVING]


async def reflected(door: Door, **request: Any) -> reflection_pb2.ServerReflectionResponse:
    client: Any = reflection_pb2_grpc.ServerReflectionStub(door.channel)
    asked = reflection_pb2.ServerReflectionRequest(**request)
    call = client.ServerReflectionInfo(iter([asked]))
    async with asyncio.timeout(60):
        return await call.read()


async def test_reflection_lists_and_describes() -> None:
    async with front_door() as door:
        listed = await reflected(door, list_services="")
        names = {service.name for service in listed.list_services_response.service}
        assert {
            "inference.GRPCInferenceService",
            "orchid.v1.Inference",
            "grpc.health.v1.Health",
        } <= names
        for name in names - {"grpc.reflection.v1alpha.ServerReflection"}:
            described = await reflected(door, file_containing_symbol=name)
            (raw,) = described.file_descriptor_response.file_descriptor_proto[:1]
            proto = FileDescriptorProto.FromString(raw)
            assert name in {f"{proto.package}.{service.name}" for service in proto.service}
            for dependency in proto.dependency:
                found = await reflected(door, file_by_filename=dependency)
                assert found.HasField("file_descriptor_response")


async def test_an_address_in_use_is_said_so() -> None:
    async with front_door() as door:
        with pytest.raises(OSError, match=door.address):
            async with front_door(config=ControlPlaneConfig(listen=door.address)):
                pass


async def test_unknown_methods_are_unimplemented() -> None:
    async with front_door() as door:
        call = raw_unary(door.channel, "Nope")
        error = await refusal(call(b""))
    assert error.code() is grpc.StatusCode.UNIMPLEMENTED
