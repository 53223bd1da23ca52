"""What is wrong with a request is said in OpenAI's form, by field, and never with a text."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

import pytest

from controlplane.config import ControlPlaneConfig
from controlplane.http.protocol import MOST_HEAD_BYTES
from tests.contract.controlplane.http_door import error_of, raw_post, web_door

SECRET = "the caller's own words"


def embeddings(**changes: Any) -> bytes:
    """A sound body with changes; a value of None leaves a field out."""
    fields = {"model": "vectors", "input": "good", **changes}
    return json.dumps({k: v for k, v in fields.items() if v is not None}).encode()


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        (b"", None, "no valid JSON"),
        (b"{", None, "no valid JSON"),
        (b"\xff\xfe", None, "no valid JSON"),
        (b"[" * 100_000, None, "no valid JSON"),
        (b"[]", None, "must be a JSON object, got an array"),
        (b"null", None, "got null"),
        (b"{}", "model", "is required"),
        (embeddings(model=5), "model", "must be a valid string, got 5"),
        (embeddings(model=[SECRET]), "model", "must be a valid string, got an array"),
        (embeddings(model=""), None, "the model name is empty"),
        (embeddings(input=None), "input", "is required"),
        (embeddings(input=5), "input", "must be a string, an array of strings"),
        (embeddings(input=[]), "input", "got an empty array"),
        (embeddings(input=["a", 1]), "input.1", "must be a string, got 1"),
        (embeddings(input=[1, SECRET]), "input.1", "token id from 0 to 2147483647, got a string"),
        (embeddings(input=[1, -1]), "input.1", "got -1"),
        (embeddings(input=[1, 10**30]), "input.1", "more than 20 digits"),
        (embeddings(input=[[1], "x"]), "input.1", "must be an array of token ids"),
        (embeddings(input=[[1], [True]]), "input.1.0", "got true"),
        (embeddings(input=[[1], []]), None, "sequence 1 has no token"),
        (embeddings(input=["x"] * 1025), "input", "holds 1025 strings; at most 1024"),
        (embeddings(input=[[1]] * 1025), "input", "holds 1025 arrays of token ids"),
        (embeddings(input=[1] * 600_000), "input", "holds 600000 token ids; at most 524288"),
        (embeddings(input=[[1] * 600] * 1000), "input", "holds 600000 token ids"),
        (embeddings(input="good " * 63), None, "65 tokens"),
        (embeddings(encoding_format="hex"), "encoding_format", "accepted: 'base64', 'float'"),
        (embeddings(dimensions=7), "dimensions", "is 7; model 'vectors' gives 2"),
        (embeddings(dimensions=0), "dimensions", "got 0"),
        (embeddings(user=5), "user", "must be a valid string, got 5"),
        (embeddings(minimum_quality=2), None, "accepted: 0 to 1"),
        (embeddings(minimum_quality="high"), "minimum_quality", "got a string"),
        (embeddings(deadline_ms=10**12), None, "accepted: up to 86400000"),
        (embeddings(prohibited_variants=["x"] * 65), "prohibited_variants", "has 65; at most 64"),
    ],
)
async def test_each_fault_is_named(body: bytes, param: str | None, words: str) -> None:
    async with web_door() as door:
        response = await door.post("/v1/embeddings", body)
        error = error_of(response, 400)
        assert error["param"] == param
        assert words in error["message"]
        assert SECRET not in error["message"]
        assert error["type"] == "invalid_request_error"


async def test_unknown_names_are_not_found() -> None:
    async with web_door() as door:
        model = error_of(await door.post("/v1/embeddings", embeddings(model="nope")), 404)
        assert (model["code"], model["param"]) == ("model_not_found", "model")
        variant = error_of(await door.post("/v1/embeddings", embeddings(variant="nope")), 404)
        assert variant["code"] == "not_found"
        assert "'vectors-a', 'vectors-b'" in variant["message"]
        path = error_of(await door.client.get("/v1/nothing"), 404)
        assert path["code"] == "unknown_url"
        method = await door.client.get("/v1/embeddings")
        assert error_of(method, 405)["code"] == "method_not_allowed"
        assert method.headers["allow"] == "POST"


async def test_fields_that_are_not_known_change_nothing() -> None:
    async with web_door() as door:
        body = embeddings(store=True, metadata={"a": "b"}, whatever=[1, {"x": None}])
        assert (await door.post("/v1/embeddings", body)).status_code == 200


@pytest.mark.parametrize("value", ["soon", "nan", "1e99"])
async def test_a_deadline_header_that_is_no_time_is_named(value: str) -> None:
    async with web_door() as door:
        response = await door.post("/v1/embeddings", embeddings(), x_orchid_deadline_ms=value)
        assert error_of(response, 400)["param"] == "x-orchid-deadline-ms"


async def test_a_deadline_that_has_passed_is_never_queued() -> None:
    async with web_door() as door:
        response = await door.post("/v1/embeddings", embeddings(), x_orchid_deadline_ms="-1")
        assert error_of(response, 504)["code"] == "deadline_exceeded"
        response = await door.post("/v1/embeddings", embeddings(deadline_ms=-5))
        assert error_of(response, 504)["code"] == "deadline_exceeded"
        assert not door.grpc.queue.requests


async def test_a_body_over_the_message_limit_is_refused() -> None:
    async with web_door(config=ControlPlaneConfig(max_message_bytes=10_000)) as door:
        large = embeddings(input="good " * 4000)
        assert "10000 bytes" in error_of(await door.post("/v1/embeddings", large), 413)["message"]

        async def pieces() -> Any:
            for _ in range(40):
                yield b" " * 500

        unsized = await door.client.post("/v1/embeddings", content=pieces())
        assert error_of(unsized, 413)["code"] == "request_too_large"
        assert (await door.post("/v1/embeddings", embeddings())).status_code == 200


async def test_an_encoded_body_is_refused() -> None:
    async with web_door() as door:
        response = await door.post("/v1/embeddings", embeddings(), content_encoding="gzip")
        assert error_of(response, 415)["code"] == "unsupported_encoding"


async def test_a_body_that_never_comes_is_given_up() -> None:
    async with web_door(config=ControlPlaneConfig(deadline_cap_ms=50)) as door:
        connection = await raw_post(door.address, "/v1/embeddings", b"{", length=10)
        answer = await asyncio.wait_for(connection.reader.read(), 30.0)
        assert answer.startswith(b"HTTP/1.1 408") and b"connection: close" in answer
        assert b"did not come within" in answer
        connection.cut()


async def test_a_head_that_never_ends_is_refused() -> None:
    async with web_door() as door:
        host, _, port = door.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET /health HTTP/1.1\r\nx-filler: " + b"x" * (4 * MOST_HEAD_BYTES))
        told = b"HTTP/1.1 400"
        # What was still on its way when the connection closed may reset it before it is read.
        with contextlib.suppress(ConnectionError):
            told = await reader.read()
        assert told.startswith(b"HTTP/1.1 400")
        writer.close()
        # A body is no head, however large and in how many pieces.
        assert (await door.post("/v1/embeddings", embeddings(x="y" * 200_000))).status_code == 200
