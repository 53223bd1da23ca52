"""A stock client, in a process and an environment of its own, against real processes."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf import descriptor_pb2

from deploy.cluster import LocalCluster
from protos.inference import model_config_pb2, oip_pb2
from protos.orchid.v1 import common_pb2, inference_pb2, inference_pb2_grpc
from tests.integration.support import gathered
from tests.triton_environment import triton_python

SESSION = Path(__file__).with_name("tritonclient_session.py")

JOBS: list[dict[str, Any]] = [
    {"id": "one", "model": "tiny", "texts": ["a good film"], "variant": "tiny-a"},
    {
        "id": "three",
        "model": "tiny",
        "texts": ["bad", "a superb and moving story, told well", "dull plot"],
        "variant": "tiny-b",
    },
    {"id": "ids", "model": "tiny", "ids": [[2, 5, 6, 3]], "variant": "tiny-a"},
    {
        "id": "ragged",
        "model": "tiny",
        "ids": [[2, 5, 6, 3], [2, 3], [2, 9, 3]],
        "variant": "tiny-b",
    },
    *(
        {"id": f"more-{index}", "model": "tiny", "texts": ["good " * index], "variant": "tiny-a"}
        for index in range(1, 13)
    ),
]


@pytest.fixture(scope="module")
def jobs_answered_natively() -> Callable[[str], dict[str, Any]]:
    """Logits, variant and digest of every job by the native API of an address."""

    def ask(address: str) -> dict[str, Any]:
        with grpc.insecure_channel(address) as channel:
            stub = inference_pb2_grpc.InferenceStub(channel)
            return {job["id"]: native(stub, job) for job in JOBS}

    return ask


def native(stub: Any, job: dict[str, Any]) -> dict[str, Any]:
    request = inference_pb2.InferRequest(
        model=job["model"],
        request_class=inference_pb2.RequestClass(variant=job["variant"]),
    )
    if "texts" in job:
        request.text.texts.extend(job["texts"])
    else:
        flat = np.concatenate([np.array(row, "<i4") for row in job["ids"]])
        request.tokens.CopyFrom(
            common_pb2.TokenSequences(token_ids=flat.tobytes(), lengths=map(len, job["ids"]))
        )
    response = stub.Infer(request, timeout=30)
    (logits,) = response.outputs
    return {
        "logits": np.frombuffer(logits.data, "<f4").reshape(logits.shape),
        "variant": response.provenance.variant,
        "digest": response.provenance.manifest_digest,
    }


@pytest.mark.timeout(900)
def test_a_stock_client_gets_what_the_native_api_gives(
    start_cluster: Callable[..., LocalCluster],
    jobs_answered_natively: Callable[[str], dict[str, Any]],
) -> None:
    cluster = start_cluster(workers=2, models=("tiny",))
    expected = jobs_answered_natively(cluster.address)
    gathered(cluster.address)
    ran = subprocess.run(
        [triton_python(), SESSION, cluster.address],
        input=json.dumps(JOBS),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    got = json.loads(ran.stdout)

    for way in ("sync", "stream", "aio", "aio_stream"):
        answers = {answer["id"]: answer for answer in got[way]}
        assert set(answers) == set(expected), way
        for name, answer in answers.items():
            # A run may hold other requests too, which may move the last bits.
            assert np.allclose(answer["logits"], expected[name]["logits"], rtol=0, atol=1e-5)
            assert answer["variant"] == expected[name]["variant"]
            assert answer["digest"] == expected[name]["digest"]
            assert answer["final"] is ("stream" in way)

    (error,) = got["stream_errors"]
    assert "NOT_FOUND: no model 'no-such-model' here" in error
    check_description(got["description"])
    assert got["refusals"]["model"].startswith("StatusCode.NOT_FOUND")
    assert "'tiny-a', 'tiny-b'" in got["refusals"]["variant"]
    assert got["refusals"]["output"].startswith("StatusCode.INVALID_ARGUMENT")
    check_numbers(got["numbers"])


def check_description(told: dict[str, Any]) -> None:
    """Everything around an inference that clients look at."""
    ready = [told[name] for name in ("live", "ready", "model_ready", "other_ready")]
    assert ready == [True, True, True, False]
    assert "statistics" in told["extensions"]
    assert [each["name"] for each in told["metadata"]["inputs"]][:2] == ["text", "input_ids"]
    assert told["config"]["name"] == "tiny"
    assert ("tiny", "READY") in [(each["name"], each.get("state")) for each in told["index"]]
    assert told["regions"] == 0
    assert told["shared_memory"].startswith("StatusCode.UNIMPLEMENTED: shared memory")
    counted = told["statistics"]["inference_stats"]
    # The native calls, then each of the client's four ways.
    assert int(counted["success"]["count"]) == 5 * len(JOBS)
    for phase in ("success", "queue", "compute_input", "compute_infer", "compute_output"):
        assert int(counted[phase]["count"]) == 5 * len(JOBS)
        assert int(counted[phase]["ns"]) > 0
    sequences = sum(len(job.get("texts") or job["ids"]) for job in JOBS)
    assert int(told["statistics"]["inference_count"]) == 5 * sequences
    assert 0 < int(told["statistics"]["execution_count"]) <= 5 * len(JOBS)


def check_numbers(public: dict[str, Any]) -> None:
    """Every field, enum value and method of ours is the public one."""
    ours = numbers()
    assert len(ours) > 200
    assert {name: public.get(name) for name in ours} == ours
    requests = {name for name in public if name.startswith("ModelInferRe")}
    assert requests <= set(ours)


def numbers() -> dict[str, Any]:
    """Ours, in the form in which the session reports the client's."""
    found: dict[str, Any] = {}

    def walk(message: Any, prefix: str) -> None:
        for field in message.field:
            key = f"{prefix}{message.name}.{field.name}"
            found[key] = [field.number, field.type, field.label, field.type_name]
        for nested in message.nested_type:
            walk(nested, f"{prefix}{message.name}.")
        for enum in message.enum_type:
            for value in enum.value:
                found[f"{prefix}{message.name}.{enum.name}.{value.name}"] = value.number

    for module in (oip_pb2, model_config_pb2):
        file = descriptor_pb2.FileDescriptorProto()
        module.DESCRIPTOR.CopyToProto(file)
        for message in file.message_type:
            walk(message, "")
        for enum in file.enum_type:
            for value in enum.value:
                found[f"{enum.name}.{value.name}"] = value.number
        for service in file.service:
            for method in service.method:
                found[f"{service.name}.{method.name}"] = [
                    method.input_type,
                    method.output_type,
                    method.client_streaming,
                    method.server_streaming,
                ]
    return found
