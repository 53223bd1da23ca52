"""Runs inside a virtual environment of its own: everything a stock client does, as JSON.

Usage: python tritonclient_session.py ADDRESS < requests.json > answers.json

The client's protobuf classes collide with ours in one process, so this file imports
nothing of the project.
"""

from __future__ import annotations

import asyncio
import json
import queue
import sys
from typing import Any

import numpy as np
import tritonclient.grpc as client
import tritonclient.grpc.aio as aio_client
from google.protobuf import descriptor_pb2
from tritonclient.grpc import model_config_pb2, service_pb2
from tritonclient.utils import InferenceServerException


def text_inputs(texts: list[str]) -> list[Any]:
    """A BYTES input of shape [N, 1]."""
    array = np.array([[text.encode()] for text in texts], dtype=np.object_)
    tensor = client.InferInput("text", list(array.shape), "BYTES")
    tensor.set_data_from_numpy(array)
    return [tensor]


def id_inputs(rows: list[list[int]]) -> list[Any]:
    """Padded token ids with their mask."""
    width = max(map(len, rows))
    ids = np.zeros((len(rows), width), np.int64)
    mask = np.zeros((len(rows), width), np.int64)
    for index, row in enumerate(rows):
        ids[index, : len(row)] = row
        mask[index, : len(row)] = 1
    tensors = []
    for name, array in (("input_ids", ids), ("attention_mask", mask)):
        tensor = client.InferInput(name, list(array.shape), "INT64")
        tensor.set_data_from_numpy(array)
        tensors.append(tensor)
    return tensors


def inputs_of(job: dict[str, Any]) -> list[Any]:
    """The inputs of one job, by text or by ids."""
    return text_inputs(job["texts"]) if "texts" in job else id_inputs(job["ids"])


def shown(result: Any) -> dict[str, Any]:
    """What a client sees of an answer."""
    response = result.get_response()
    return {
        "id": response.id,
        "logits": result.as_numpy("logits").tolist(),
        "variant": response.parameters["variant"].string_param,
        "digest": response.parameters["manifest_digest"].string_param,
        "final": response.parameters["triton_final_response"].bool_param,
    }


def sync_calls(address: str, jobs: list[dict[str, Any]]) -> list[Any]:
    """Each job as a unary call of the synchronous client."""
    with client.InferenceServerClient(address) as server:
        return [
            shown(
                server.infer(
                    job["model"],
                    inputs_of(job),
                    request_id=job["id"],
                    outputs=[client.InferRequestedOutput("logits")],
                    client_timeout=30,
                    parameters={"variant": job["variant"]},
                )
            )
            for job in jobs
        ]


def sync_stream(address: str, jobs: list[dict[str, Any]]) -> list[Any]:
    """All jobs in flight on one stream of the synchronous client."""
    answers: queue.Queue[Any] = queue.Queue()
    with client.InferenceServerClient(address) as server:
        server.start_stream(callback=lambda result, error: answers.put((result, error)))
        for job in jobs:
            server.async_stream_infer(
                job["model"],
                inputs_of(job),
                request_id=job["id"],
                parameters={"variant": job["variant"]},
                enable_empty_final_response=True,
            )
        server.async_stream_infer("no-such-model", inputs_of(jobs[0]), request_id="wrong")
        got = [answers.get(timeout=30) for _ in range(len(jobs) + 1)]
        server.stop_stream()
    errors = [str(error) for _, error in got if error is not None]
    return [[shown(result) for result, error in got if error is None], errors]


async def aio_calls(address: str, jobs: list[dict[str, Any]]) -> list[Any]:
    """Each job as a unary call of the asynchronous client, all at once."""
    async with aio_client.InferenceServerClient(address) as server:
        results = await asyncio.gather(
            *(
                server.infer(
                    job["model"],
                    inputs_of(job),
                    request_id=job["id"],
                    parameters={"variant": job["variant"]},
                )
                for job in jobs
            )
        )
    return [shown(result) for result in results]


async def aio_stream(address: str, jobs: list[dict[str, Any]]) -> list[Any]:
    """All jobs on one stream of the asynchronous client."""

    async def requests() -> Any:
        for job in jobs:
            yield {
                "model_name": job["model"],
                "inputs": inputs_of(job),
                "request_id": job["id"],
                "parameters": {"variant": job["variant"]},
            }

    async with aio_client.InferenceServerClient(address) as server:
        return [
            shown(result) async for result, error in server.stream_infer(requests()) if not error
        ]


def description(address: str, model: str) -> dict[str, Any]:
    """The calls that clients make around an inference, shared-memory clean-up included."""
    with client.InferenceServerClient(address) as server:
        server.unregister_system_shared_memory()
        server.unregister_cuda_shared_memory()
        try:
            server.register_system_shared_memory("region", "/region", 64)
            shared_memory = ""
        except InferenceServerException as error:
            shared_memory = f"{error.status()}: {error.message()}"
        return {
            "live": server.is_server_live(),
            "ready": server.is_server_ready(),
            "model_ready": server.is_model_ready(model),
            "other_ready": server.is_model_ready("no-such-model"),
            "extensions": list(server.get_server_metadata().extensions),
            "metadata": server.get_model_metadata(model, as_json=True),
            "config": server.get_model_config(model, as_json=True)["config"],
            "index": server.get_model_repository_index(as_json=True)["models"],
            "statistics": server.get_inference_statistics(model, as_json=True)["model_stats"][0],
            "regions": len(server.get_system_shared_memory_status().regions),
            "shared_memory": shared_memory,
        }


def refusals(address: str, model: str) -> dict[str, str]:
    """Status and text of calls that cannot work."""
    said = {}
    with client.InferenceServerClient(address) as server:
        for name, chosen, keywords in (
            ("model", "no-such-model", {}),
            ("variant", model, {"parameters": {"variant": "no-such-variant"}}),
            ("output", model, {"outputs": [client.InferRequestedOutput("no-such-output")]}),
        ):
            try:
                server.infer(chosen, text_inputs(["good"]), **keywords)
                said[name] = "answered"
            except InferenceServerException as error:
                said[name] = f"{error.status()}: {error.message()}"
    return said


def numbers() -> dict[str, Any]:
    """Name, number, type and label of every public field, and the methods' types."""
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

    for module in (service_pb2, model_config_pb2):
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


def main() -> None:
    """Play every job through each of the client's four ways and print what came back."""
    address, jobs = sys.argv[1], json.load(sys.stdin)
    model = jobs[0]["model"]
    streamed, errors = sync_stream(address, jobs)
    json.dump(
        {
            "sync": sync_calls(address, jobs),
            "stream": streamed,
            "stream_errors": errors,
            "aio": asyncio.run(aio_calls(address, jobs)),
            "aio_stream": asyncio.run(aio_stream(address, jobs)),
            "description": description(address, model),
            "refusals": refusals(address, model),
            "numbers": numbers(),
        },
        sys.stdout,
    )


if __name__ == "__main__":
    main()
