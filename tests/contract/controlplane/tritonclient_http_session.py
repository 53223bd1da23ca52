"""Runs inside a virtual environment of its own: what a stock HTTP client does, as JSON.

Usage: python tritonclient_http_session.py ADDRESS > answers.json

It imports nothing of the project: its environment has none of it.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import numpy as np
import tritonclient.http as client
import tritonclient.http.aio as aio_client
from tritonclient.utils import InferenceServerException

TEXTS = ["good film", "bad"]


def text_input(*, binary: bool = True) -> Any:
    """A BYTES input of shape [N, 1]."""
    array = np.array([[text.encode()] for text in TEXTS], dtype=np.object_)
    tensor = client.InferInput("text", list(array.shape), "BYTES")
    tensor.set_data_from_numpy(array, binary_data=binary)
    return tensor


def number_input(name: str, *, binary: bool) -> Any:
    """An FP32 input of the adder."""
    array = np.array([[1.5, -2.5, 1e-3]], np.float32)
    tensor = client.InferInput(name, list(array.shape), "FP32")
    tensor.set_data_from_numpy(array, binary_data=binary)
    return tensor


def shown(result: Any) -> dict[str, Any]:
    """What a client sees of an answer."""
    response = result.get_response()
    return {
        "id": response.get("id", ""),
        "logits": result.as_numpy("logits").tolist(),
        "variant": response["parameters"]["variant"],
    }


def classes(server: Any, *, binary: bool) -> Any:
    """The best class of each text."""
    wanted = client.InferRequestedOutput("logits", binary_data=binary, class_count=1)
    result = server.infer("tiny", [text_input()], outputs=[wanted])
    found = result.as_numpy("logits").ravel().tolist()
    return [each.decode() if isinstance(each, bytes) else each for each in found]


def answers(server: Any) -> dict[str, Any]:
    """The same texts in every form that the client has."""
    plain = client.InferRequestedOutput("logits", binary_data=False)
    pinned = {"variant": "tiny-b", "deadline_ms": 60_000}
    mixed = [number_input("a", binary=True), number_input("b", binary=False)]
    return {
        "binary": shown(server.infer("tiny", [text_input()], request_id="one")),
        "json": shown(server.infer("tiny", [text_input(binary=False)], outputs=[plain])),
        "pinned": shown(
            server.infer("tiny", [text_input()], timeout=60_000_000, parameters=pinned)
        ),
        "version": shown(server.infer("tiny", [text_input()], model_version="3")),
        "later": shown(server.async_infer("tiny", [text_input()], request_id="l").get_result()),
        "sum": server.infer("adder", mixed).as_numpy("sum").tolist(),
        "classes": [classes(server, binary=True), classes(server, binary=False)],
    }


def description(server: Any) -> dict[str, Any]:
    """The calls that clients make around an inference."""
    server.load_model("shelved")
    server.unload_model("tiny")
    return {
        "live": server.is_server_live(),
        "ready": server.is_server_ready(),
        "model_ready": server.is_model_ready("tiny"),
        "other_ready": server.is_model_ready("no-such-model"),
        "server": server.get_server_metadata(),
        "metadata": server.get_model_metadata("tiny"),
        "config": server.get_model_config("tiny"),
        "index": server.get_model_repository_index(),
        "statistics": server.get_inference_statistics("tiny")["model_stats"][0],
        "all_statistics": len(server.get_inference_statistics()["model_stats"]),
    }


def refusals(server: Any) -> dict[str, str]:
    """Status and text of calls that cannot work."""
    cases: list[tuple[str, str, dict[str, Any]]] = [
        ("model", "no-such-model", {}),
        ("variant", "tiny", {"parameters": {"variant": "no-such-variant"}}),
        ("output", "tiny", {"outputs": [client.InferRequestedOutput("no-such-output")]}),
        ("compressed", "tiny", {"request_compression_algorithm": "gzip"}),
    ]
    said = {}
    for name, model, keywords in cases:
        try:
            server.infer(model, [text_input()], **keywords)
            said[name] = "answered"
        except InferenceServerException as error:
            said[name] = f"{error.status()}: {error.message()}"
    return said


async def asynchronous(address: str) -> dict[str, Any]:
    """One request of the asynchronous client."""
    async with aio_client.InferenceServerClient(address) as server:
        return shown(await server.infer("tiny", [text_input()], request_id="aio"))


def main() -> None:
    """Play everything and print what came back."""
    address = sys.argv[1]
    with client.InferenceServerClient(address) as server:
        told = {
            "answers": answers(server),
            "refusals": refusals(server),
            "description": description(server),
        }
    told["aio"] = asyncio.run(asynchronous(address))
    json.dump(told, sys.stdout)


if __name__ == "__main__":
    main()
