"""Who may call which method, as whom, and how often; refusals are audited."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from bench.certificates import Authority
from protos.inference import oip_pb2
from protos.orchid.v1 import inference_pb2, inference_pb2_grpc
from tests.contract.controlplane.front_door import MODEL, Door, front_door
from tests.contract.controlplane.oip_client import refusal, stub, text_request
from tests.contract.controlplane.secured import (
    GATEWAY,
    NODE,
    OPERATOR,
    SHOP,
    SLOW,
    audited,
    bearer,
    client_of,
    secured,
    sha256,
    tls_of,
)

CODE = grpc.StatusCode


@pytest.fixture
async def door(tmp_path: Path) -> AsyncIterator[Door]:
    config, security = secured(tmp_path)
    async with front_door(config=config, security=security) as made:
        yield made


def native(door: Door) -> Any:
    return inference_pb2_grpc.InferenceStub(door.channel)


def asked(tenant: str = "") -> inference_pb2.InferRequest:
    return inference_pb2.InferRequest(
        model=MODEL,
        text=inference_pb2.TextInput(texts=["good"]),
        request_class=inference_pb2.RequestClass(tenant=tenant),
    )


async def code_of(call: Any) -> grpc.StatusCode:
    error = await refusal(call)
    code: grpc.StatusCode = error.code()
    return code


async def test_callers_who_are_not_known_are_refused_and_told_of(
    door: Door, tmp_path: Path
) -> None:
    for metadata in ((), bearer("guess"), (("authorization", "Basic c2hvcA=="),)):
        assert await code_of(stub(door).ModelInfer(text_request("good"), metadata=metadata)) is (
            CODE.UNAUTHENTICATED
        )
        assert await code_of(native(door).Infer(asked(), metadata=metadata)) is CODE.UNAUTHENTICATED
        generate = native(door).Generate(inference_pb2.GenerateRequest(), metadata=metadata)
        assert await generate.code() is CODE.UNAUTHENTICATED
        stream = stub(door).ModelStreamInfer(metadata=metadata)
        assert await stream.code() is CODE.UNAUTHENTICATED
    assert not door.queue.requests
    lines = audited(tmp_path)
    assert len(lines) == 12
    assert {line["event"] for line in lines} >= {
        "inference.GRPCInferenceService/ModelInfer",
        "orchid.v1.Inference/Generate",
    }
    assert all(line["who"] == "" and line["peer"].startswith("ipv4:127.0.0.1") for line in lines)
    assert "guess" not in (tmp_path / "audit.log").read_text()


async def test_each_role_may_do_its_part_and_nothing_else(door: Door) -> None:
    service = stub(door)
    infer = text_request("good")
    index, load = oip_pb2.RepositoryIndexRequest(), oip_pb2.RepositoryModelLoadRequest
    assert (await service.ModelInfer(infer, metadata=bearer(SHOP))).model_name == MODEL
    for role in (OPERATOR, NODE):
        assert await code_of(service.ModelInfer(infer, metadata=bearer(role))) is (
            CODE.PERMISSION_DENIED
        )
    for role in (SHOP, OPERATOR):
        assert (await service.RepositoryIndex(index, metadata=bearer(role))).models
    for role in (SHOP, NODE):
        call = service.RepositoryModelLoad(load(model_name="shelved"), metadata=bearer(role))
        assert await code_of(call) is CODE.PERMISSION_DENIED
    await service.RepositoryModelLoad(load(model_name="shelved"), metadata=bearer(OPERATOR))
    assert door.repository.calls == [("load", "shelved")]


async def test_loads_and_refusals_are_in_the_audit_log(door: Door, tmp_path: Path) -> None:
    load = oip_pb2.RepositoryModelLoadRequest(model_name="shelved")
    unload = oip_pb2.RepositoryModelUnloadRequest(model_name="nobody")
    await refusal(stub(door).RepositoryModelLoad(load, metadata=bearer(SHOP)))
    await stub(door).RepositoryModelLoad(load, metadata=bearer(OPERATOR))
    await refusal(stub(door).RepositoryModelUnload(unload, metadata=bearer(OPERATOR)))
    lines = [
        (line["event"], line["who"], line["outcome"], line.get("model", ""))
        for line in audited(tmp_path)
    ]
    assert lines == [
        ("inference.GRPCInferenceService/RepositoryModelLoad", "shop", "wrong role", ""),
        ("model.load", "operator", "ok", "shelved"),
        ("model.unload", "operator", "not_found", "nobody"),
    ]


async def test_the_tenant_of_a_request_is_its_callers(door: Door) -> None:
    await native(door).Infer(asked(), metadata=bearer(SHOP))
    await native(door).Infer(asked("shop"), metadata=bearer(SHOP))
    await stub(door).ModelInfer(text_request("good"), metadata=bearer(SHOP))
    await stub(door).ModelInfer(text_request("good", tenant="shop"), metadata=bearer(SHOP))
    await native(door).Infer(asked("any"), metadata=bearer(GATEWAY))
    assert [r.klass.tenant for r in door.queue.requests] == ["shop"] * 4 + ["any"]
    error = await refusal(native(door).Infer(asked("other"), metadata=bearer(SHOP)))
    assert error.code() is CODE.PERMISSION_DENIED
    assert "another tenant" in (error.details() or "")
    call = stub(door).ModelInfer(text_request("good", tenant="other"), metadata=bearer(SHOP))
    assert await code_of(call) is CODE.PERMISSION_DENIED
    generation = inference_pb2.GenerateRequest(
        model=MODEL, text="x", request_class=inference_pb2.RequestClass(tenant="other")
    )
    assert await native(door).Generate(generation, metadata=bearer(SHOP)).code() is (
        CODE.PERMISSION_DENIED
    )
    assert len(door.queue.requests) == 5


async def test_a_stream_tells_of_each_message_that_names_another_tenant(door: Door) -> None:
    stream = native(door).StreamInfer(metadata=bearer(SHOP))
    for tenant in ("", "other", "shop"):
        request = asked(tenant)
        request.request_id = tenant or "none"
        await stream.write(request)
    await stream.done_writing()
    async with asyncio.timeout(60):
        answers = [answer async for answer in stream]
    refused = [a.error.code for a in answers if a.HasField("error")]
    assert refused == [CODE.PERMISSION_DENIED.value[0]] and len(answers) == 3
    assert [r.klass.tenant for r in door.queue.requests] == ["shop", "shop"]


async def test_an_identity_that_sends_too_much_is_told_when_to_come_back(door: Door) -> None:
    for _ in range(2):
        await native(door).Infer(asked(), metadata=bearer(SLOW))
    error = await refusal(native(door).Infer(asked(), metadata=bearer(SLOW)))
    assert error.code() is CODE.RESOURCE_EXHAUSTED
    trailers = dict(error.trailing_metadata() or ())
    assert 0 < int(trailers["retry-after-ms"]) <= 100_000
    stream = native(door).StreamInfer(metadata=bearer(SLOW))
    await stream.write(asked())
    assert (await stream.read()).error.code == CODE.RESOURCE_EXHAUSTED.value[0]
    stream.cancel()
    await native(door).Infer(asked(), metadata=bearer(SHOP))


async def test_probes_need_no_secret_and_reflection_does(door: Door) -> None:
    health = health_pb2_grpc.HealthStub(door.channel)
    assert (await health.Check(health_pb2.HealthCheckRequest())).status == 1
    assert (await stub(door).ServerLive(oip_pb2.ServerLiveRequest())).live
    reflection = reflection_pb2_grpc.ServerReflectionStub(door.channel)
    wanted = reflection_pb2.ServerReflectionRequest(list_services="")
    refused = reflection.ServerReflectionInfo(iter([wanted]))
    assert await refused.code() is CODE.UNAUTHENTICATED
    told = reflection.ServerReflectionInfo(iter([wanted]), metadata=bearer(SHOP))
    async with asyncio.timeout(60):
        names = [s.name async for r in told for s in r.list_services_response.service]
    assert "orchid.v1.Inference" in names


async def test_a_certificate_is_as_good_as_a_token(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    config, security = secured(tmp_path, tls=tls_of(authority, mutual=True))
    async with front_door(
        config=config, security=security, credentials=client_of(authority, "client.example")
    ) as door:
        await native(door).Infer(asked(), timeout=20)
        assert door.queue.requests[-1].klass.tenant == "client"
        load = oip_pb2.RepositoryModelLoadRequest(model_name="shelved")
        assert await code_of(stub(door).RepositoryModelLoad(load)) is CODE.PERMISSION_DENIED
        await stub(door).RepositoryModelLoad(load, metadata=bearer(OPERATOR))
        stranger = client_of(authority, "stranger.example")
        async with grpc.aio.secure_channel(door.address, stranger) as channel:
            made: Any = inference_pb2_grpc.InferenceStub(channel)
            assert await code_of(made.Infer(asked())) is CODE.UNAUTHENTICATED


async def test_changed_identities_hold_for_calls_on_connections_that_stand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controlplane.security.identities._LOOK_NS", 0)
    config, security = secured(tmp_path)
    async with front_door(config=config, security=security) as door:
        await native(door).Infer(asked(), metadata=bearer(SHOP))
        path = Path(config.identities)
        path.write_text(path.read_text().replace('"shop"', '"store"'))
        await native(door).Infer(asked(), metadata=bearer(SHOP))
        assert [r.klass.tenant for r in door.queue.requests] == ["shop", "store"]
        path.write_text("{")
        await native(door).Infer(asked(), metadata=bearer(SHOP))
    events = [(line["event"], line["outcome"]) for line in audited(tmp_path)]
    assert events == [("identities.reload", "ok"), ("identities.reload", "failed")]


async def test_streams_end_once_their_identity_is_revoked_and_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controlplane.security.identities._LOOK_NS", 0)
    config, security = secured(tmp_path)
    async with front_door(config=config, security=security) as door:
        streams: list[tuple[Any, Any]] = [
            (native(door).StreamInfer(metadata=bearer(SHOP)), asked()),
            (stub(door).ModelStreamInfer(metadata=bearer(SHOP)), text_request("good")),
        ]
        gateway = native(door).StreamInfer(metadata=bearer(GATEWAY))
        async with asyncio.timeout(60):
            for stream, message in (*streams, (gateway, asked("any"))):
                await stream.write(message)
                assert await stream.read() is not grpc.aio.EOF
            path = Path(config.identities)
            path.write_text(path.read_text().replace(sha256(SHOP), sha256("another")))
            for stream, message in streams:
                await stream.write(message)
                assert await stream.code() is CODE.UNAUTHENTICATED
            await gateway.write(asked("any"))
            assert await gateway.read() is not grpc.aio.EOF
            await gateway.done_writing()
            assert await gateway.code() is CODE.OK
        assert len(door.queue.requests) == 4
    ends = [line["event"] for line in audited(tmp_path) if line["outcome"] == "unknown token"]
    assert ends == [
        "orchid.v1.Inference/StreamInfer",
        "inference.GRPCInferenceService/ModelStreamInfer",
    ]
