"""Metadata, configuration, statistics, repository and shared-memory calls."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import grpc
import pytest

from controlplane.errors import Unavailable
from controlplane.registry import ModelState
from protos.inference import model_config_pb2, oip_pb2
from tests.contract.controlplane.front_door import (
    ADDER,
    DIGEST,
    MODEL,
    default_models,
    front_door,
    text_model,
)
from tests.contract.controlplane.oip_client import refusal, stub, text_request

NOT_FOUND = grpc.StatusCode.NOT_FOUND


async def test_liveness_and_readiness() -> None:
    loading = text_model("other", state=ModelState.LOADING)
    async with front_door(models=[text_model(), loading]) as door:
        client = stub(door)
        assert (await client.ServerLive(oip_pb2.ServerLiveRequest())).live
        assert (await client.ServerReady(oip_pb2.ServerReadyRequest())).ready

        async def ready(name: str, version: str = "") -> bool:
            request = oip_pb2.ModelReadyRequest(name=name, version=version)
            return (await client.ModelReady(request)).ready

        assert await ready(MODEL)
        assert await ready(MODEL, "3")
        assert not await ready(MODEL, "4")
        assert not await ready("other")
        assert not await ready("nope")
        door.serve([loading])
        assert not (await client.ServerReady(oip_pb2.ServerReadyRequest())).ready
        assert (await client.ServerLive(oip_pb2.ServerLiveRequest())).live


async def test_server_metadata_names_the_extensions() -> None:
    async with front_door() as door:
        response = await stub(door).ServerMetadata(oip_pb2.ServerMetadataRequest())
    assert (response.name, response.version) == ("orchid", "0.0.test")
    assert {"statistics", "model_configuration", "model_repository"} <= set(response.extensions)


async def test_metadata_of_a_text_model() -> None:
    async with front_door() as door:
        response = await stub(door).ModelMetadata(oip_pb2.ModelMetadataRequest(name=MODEL))
    assert (response.name, list(response.versions)) == (MODEL, ["3"])
    assert response.platform == "onnxruntime_onnx"
    described = {t.name: (t.datatype, list(t.shape)) for t in response.inputs}
    assert described == {
        "text": ("BYTES", [-1, 1]),
        "input_ids": ("INT64", [-1, -1]),
        "attention_mask": ("INT64", [-1, -1]),
    }
    assert [(t.name, t.datatype, list(t.shape)) for t in response.outputs] == [
        ("logits", "FP32", [-1, 2])
    ]


async def test_metadata_of_a_tensor_model() -> None:
    async with front_door() as door:
        response = await stub(door).ModelMetadata(oip_pb2.ModelMetadataRequest(name=ADDER))
    assert [(t.name, t.datatype, list(t.shape)) for t in response.inputs] == [
        ("a", "FP32", [-1, 3]),
        ("b", "FP32", [-1, 3]),
    ]


async def test_configuration_leaves_the_batch_dimension_out() -> None:
    async with front_door() as door:
        client = stub(door)
        text = (await client.ModelConfig(oip_pb2.ModelConfigRequest(name=MODEL))).config
        tensors = (await client.ModelConfig(oip_pb2.ModelConfigRequest(name=ADDER))).config
    assert text.max_batch_size > 0
    assert [(i.name, list(i.dims), i.optional) for i in text.input] == [
        ("text", [1], True),
        ("input_ids", [-1], True),
        ("attention_mask", [-1], True),
    ]
    assert [(o.name, list(o.dims)) for o in text.output] == [("logits", [2])]
    assert not text.model_transaction_policy.decoupled
    assert text.instance_group[0].count == 1
    assert text.parameters["manifest_digest"].string_value == DIGEST
    assert text.parameters["variants"].string_value == "tiny-a,tiny-b"
    assert tensors.max_batch_size == 0
    assert [(i.name, i.data_type, list(i.dims), i.optional) for i in tensors.input] == [
        ("a", model_config_pb2.TYPE_FP32, [-1, 3], False),
        ("b", model_config_pb2.TYPE_FP32, [-1, 3], False),
    ]


async def test_statistics_count_what_happened() -> None:
    async with front_door() as door:
        client = stub(door)
        for _ in range(4):
            await client.ModelInfer(text_request("good", "bad"))
        await refusal(client.ModelInfer(text_request("good", variant="nope")))
        door.queue.refuse = Unavailable("nobody")
        await refusal(client.ModelInfer(text_request("good")))
        request = oip_pb2.ModelStatisticsRequest(name=MODEL, version="3")
        (stats,) = (await client.ModelStatistics(request)).model_stats
        every = (await client.ModelStatistics(oip_pb2.ModelStatisticsRequest())).model_stats
    assert (stats.name, stats.version) == (MODEL, "3")
    assert (stats.inference_count, stats.execution_count) == (8, 4)
    assert stats.last_inference == 1_700_000_000_000
    inference = stats.inference_stats
    assert (inference.success.count, inference.success.ns) == (4, 4 * 500_000)
    assert (inference.queue.count, inference.queue.ns) == (4, 4 * 30_000)
    assert (inference.compute_infer.count, inference.compute_infer.ns) == (4, 4 * 400_000)
    assert inference.compute_input.count == inference.compute_output.count == 4
    assert inference.compute_input.ns > 0
    assert inference.compute_output.ns > 0
    assert inference.fail.count == 2
    assert inference.fail.ns > 0
    (batch,) = stats.batch_stats
    assert (batch.batch_size, batch.compute_infer.count) == (1, 4)
    assert batch.compute_infer.ns == 4 * 400_000
    assert [s.name for s in every] == sorted(m.name for m in default_models())


async def test_statistics_of_nothing_asked_yet_are_zero() -> None:
    async with front_door() as door:
        request = oip_pb2.ModelStatisticsRequest(name=ADDER)
        (stats,) = (await stub(door).ModelStatistics(request)).model_stats
    assert (stats.inference_count, stats.execution_count, len(stats.batch_stats)) == (0, 0, 0)


@pytest.mark.parametrize(
    ("method", "request_type"),
    [
        ("ModelMetadata", oip_pb2.ModelMetadataRequest),
        ("ModelConfig", oip_pb2.ModelConfigRequest),
        ("ModelStatistics", oip_pb2.ModelStatisticsRequest),
    ],
)
async def test_unknown_models_and_versions(method: str, request_type: Any) -> None:
    async with front_door() as door:
        call = getattr(stub(door), method)
        unknown = await refusal(call(request_type(name="nope")))
        version = await refusal(call(request_type(name=MODEL, version="8")))
    assert (unknown.code(), version.code()) == (NOT_FOUND, NOT_FOUND)
    assert "models: 'adder', 'echo', 'tiny'" in (unknown.details() or "")
    assert "versions: '3'" in (version.details() or "")


async def test_repository_index() -> None:
    loading = text_model("loading", state=ModelState.LOADING)
    failed = replace(text_model("failed", state=ModelState.FAILED), failure="file is gone")
    async with front_door(models=[text_model(), loading, failed]) as door:
        client = stub(door)
        full = (await client.RepositoryIndex(oip_pb2.RepositoryIndexRequest())).models
        ready = (await client.RepositoryIndex(oip_pb2.RepositoryIndexRequest(ready=True))).models
    assert {m.name: (m.version, m.state, m.reason) for m in full} == {
        MODEL: ("3", "READY", ""),
        "loading": ("3", "LOADING", "loading, 25%"),
        "failed": ("3", "UNAVAILABLE", "file is gone"),
        "shelved": ("", "UNAVAILABLE", "not loaded"),
    }
    assert [m.name for m in ready] == [MODEL]


async def test_load_and_unload_are_forwarded() -> None:
    async with front_door() as door:
        client = stub(door)
        await client.RepositoryModelLoad(oip_pb2.RepositoryModelLoadRequest(model_name="shelved"))
        await client.RepositoryModelUnload(oip_pb2.RepositoryModelUnloadRequest(model_name=MODEL))
        assert door.repository.calls == [("load", "shelved"), ("unload", MODEL)]
        unknown = await refusal(
            client.RepositoryModelUnload(oip_pb2.RepositoryModelUnloadRequest(model_name="nope"))
        )
        assert unknown.code() is NOT_FOUND
        door.repository.error = Unavailable("no live worker", 500)
        error = await refusal(
            client.RepositoryModelLoad(oip_pb2.RepositoryModelLoadRequest(model_name="x"))
        )
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        override = oip_pb2.RepositoryModelLoadRequest(model_name="x")
        override.parameters["config"].string_param = "{}"
        error = await refusal(client.RepositoryModelLoad(override))
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "'config'" in (error.details() or "")


async def test_shared_memory_calls() -> None:
    async with front_door() as door:
        client = stub(door)
        system = await client.SystemSharedMemoryStatus(oip_pb2.SystemSharedMemoryStatusRequest())
        cuda = await client.CudaSharedMemoryStatus(oip_pb2.CudaSharedMemoryStatusRequest())
        assert (len(system.regions), len(cuda.regions)) == (0, 0)
        await client.SystemSharedMemoryUnregister(oip_pb2.SystemSharedMemoryUnregisterRequest())
        await client.CudaSharedMemoryUnregister(oip_pb2.CudaSharedMemoryUnregisterRequest())
        for call in (
            client.SystemSharedMemoryRegister(
                oip_pb2.SystemSharedMemoryRegisterRequest(name="r", key="k", byte_size=8)
            ),
            client.CudaSharedMemoryRegister(oip_pb2.CudaSharedMemoryRegisterRequest(name="r")),
        ):
            error = await refusal(call)
            assert error.code() is grpc.StatusCode.UNIMPLEMENTED
            assert "shared memory is not supported" in (error.details() or "")


@pytest.mark.parametrize("method", ["TraceSetting", "LogSettings"])
async def test_settings_say_where_they_are_set(method: str) -> None:
    async with front_door() as door:
        request = getattr(oip_pb2, f"{method}Request")()
        error = await refusal(getattr(stub(door), method)(request))
    assert error.code() is grpc.StatusCode.UNIMPLEMENTED
    assert "configuration" in (error.details() or "")
