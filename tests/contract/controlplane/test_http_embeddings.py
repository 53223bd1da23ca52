"""The encoder lane as OpenAI's clients ask it: embeddings, models, health."""

from __future__ import annotations

import asyncio
import base64

import numpy as np
import openai
import pytest

from controlplane.config import ClassConfig, ControlPlaneConfig
from controlplane.errors import Refused, TooLate, Unavailable, Unsatisfiable, WorkerFault
from controlplane.registry import ModelState
from tests.contract.controlplane.front_door import DIGEST, MODEL, text_model
from tests.contract.controlplane.http_door import (
    CREATED_S,
    VECTORS,
    embedder,
    error_of,
    raw_post,
    web_door,
)


async def test_texts_come_back_as_vectors_in_their_order() -> None:
    async with web_door() as door, door.sdk() as sdk:
        made = await sdk.embeddings.create(model=VECTORS, input=["good film", "bad"])
        assert [each.index for each in made.data] == [0, 1]
        # [CLS] good film [SEP]: ids 1 3 5 2, their sum and their sum by place.
        assert [list(each.embedding) for each in made.data] == [[11.0, 30.0], [7.0, 15.0]]
        assert made.model == VECTORS
        assert made.usage.prompt_tokens == made.usage.total_tokens == 7
        one = await sdk.embeddings.create(model=VECTORS, input="bad", encoding_format="float")
        assert one.data[0].embedding == [7.0, 15.0]


async def test_base64_is_the_same_vector() -> None:
    async with web_door() as door:
        body = b'{"model": "vectors", "input": "bad", "encoding_format": "base64"}'
        response = await door.post("/v1/embeddings", body)
        packed = response.json()["data"][0]["embedding"]
        assert np.frombuffer(base64.b64decode(packed), "<f4").tolist() == [7.0, 15.0]


async def test_token_ids_are_taken_as_they_are() -> None:
    async with web_door() as door, door.sdk() as sdk:
        one = await sdk.embeddings.create(model=VECTORS, input=[1, 4, 2])
        many = await sdk.embeddings.create(model=VECTORS, input=[[1, 4, 2], [1, 3, 5, 2]])
        assert one.data[0].embedding == [7.0, 15.0]
        assert [each.embedding for each in many.data] == [[7.0, 15.0], [11.0, 30.0]]
        with pytest.raises(openai.BadRequestError, match="token id 99 is not in tokenizer"):
            await sdk.embeddings.create(model=VECTORS, input=[1, 99])


async def test_headers_say_where_the_answer_came_from() -> None:
    async with web_door() as door, door.sdk() as sdk:
        raw = await sdk.embeddings.with_raw_response.create(
            model=VECTORS, input="bad", extra_headers={"x-request-id": "mine-1"}
        )
        assert raw.headers["x-request-id"] == "mine-1"
        assert raw.headers["x-orchid-variant"] == f"{VECTORS}-a"
        assert raw.headers["x-orchid-manifest-digest"] == DIGEST
        assert raw.headers["x-orchid-reason"] == "most-accurate-in-reserve"
        assert raw.headers["x-orchid-charged-cpu-us"] == "2000"
        odd = await door.post("/v1/embeddings", b"{}", x_request_id="no spaces, please")
        assert odd.headers["x-request-id"] != "no spaces, please"


async def test_demands_come_from_body_and_headers() -> None:
    config = ControlPlaneConfig(classes={"audit": ClassConfig()})
    async with web_door(config=config) as door, door.sdk() as sdk:
        await sdk.embeddings.create(
            model=VECTORS,
            input="bad",
            user="someone",
            extra_headers={"x-orchid-tenant": "team", "x-orchid-request-class": "audit"},
            extra_body={"variant": "vectors-b", "prohibited_variants": ["vectors-a"]},
        )
        await sdk.embeddings.create(model=VECTORS, input="bad", user="someone")
        first, second = door.grpc.queue.requests
        assert (first.klass.tenant, first.klass.name) == ("team", "audit")
        assert (first.klass.variant, set(first.klass.prohibited)) == ("vectors-b", {"vectors-a"})
        assert second.klass.tenant == "someone"
        with pytest.raises(openai.BadRequestError, match="user: has 65 characters"):
            await sdk.embeddings.create(model=VECTORS, input="bad", user="x" * 65)


async def test_the_nearest_deadline_holds() -> None:
    async with web_door() as door, door.sdk() as sdk:
        for patience, header, field in (
            ("150", "", 0),
            ("9", "", 0),
            ("9", "5000", 0),
            ("9", "5000", 3000),
            ("2", "5000", 3000),
            ("600", "15000", 0),
        ):
            # What the client says of its own timeout.
            headers = {"x-stainless-read-timeout": patience}
            if header:
                headers["x-orchid-deadline-ms"] = header
            await sdk.embeddings.create(
                model=VECTORS,
                input="bad",
                extra_headers=headers,
                extra_body={"deadline_ms": field} if field else {},
            )
        spans = [(r.deadline_ns - r.arrived_ns) / 1e6 for r in door.grpc.queue.requests]
        # The caller's patience never prolongs the usual ten seconds.
        for span, most in zip(spans, (10_000, 9000, 5000, 3000, 2000, 15_000), strict=True):
            assert most * 0.6 < span <= most


async def test_refusals_reach_the_client_as_its_own_errors() -> None:
    async with web_door() as door, door.sdk() as sdk:

        async def ask() -> None:
            await sdk.embeddings.create(model=VECTORS, input="bad")

        door.grpc.queue.refuse = Refused("the queue is full", 1234)
        with pytest.raises(openai.RateLimitError, match="the queue is full") as limited:
            await ask()
        assert limited.value.response.headers["retry-after"] == "2"
        assert limited.value.response.headers["retry-after-ms"] == "1234"
        assert limited.value.code == "rate_limit_exceeded"
        door.grpc.queue.refuse = TooLate("the deadline passed")
        with pytest.raises(openai.InternalServerError) as late:
            await ask()
        assert late.value.status_code == 504
        assert late.value.response.headers["x-should-retry"] == "false"
        door.grpc.queue.refuse = Unavailable("no live worker", 1000)
        with pytest.raises(openai.InternalServerError) as gone:
            await ask()
        assert gone.value.status_code == 503
        assert gone.value.response.headers["retry-after"] == "1"
        door.grpc.queue.refuse = Unsatisfiable("no variant may answer")
        with pytest.raises(openai.UnprocessableEntityError):
            await ask()
        door.grpc.queue.refuse = WorkerFault("the worker failed")
        with pytest.raises(openai.InternalServerError):
            await ask()


async def test_a_client_tries_again_after_the_time_it_is_told() -> None:
    async with web_door() as door, door.sdk(max_retries=1) as sdk:
        door.grpc.queue.hold = True
        door.grpc.queue.refuse = Refused("the queue is full", 1)
        with pytest.raises(openai.RateLimitError):
            await sdk.embeddings.create(model=VECTORS, input="bad")
        door.grpc.queue.refuse = None
        door.grpc.queue.hold = False
        assert (await sdk.embeddings.create(model=VECTORS, input="bad")).data


async def test_a_client_that_ran_out_of_patience_is_cancelled() -> None:
    async with web_door() as door, door.sdk(timeout=0.3) as sdk:
        door.grpc.queue.hold = True
        with pytest.raises(openai.APITimeoutError):
            await sdk.embeddings.create(model=VECTORS, input="bad")
        await door.grpc.queue.until(lambda: len(door.grpc.queue.cancelled) == 1)


async def test_a_cut_connection_cancels_at_once() -> None:
    async with web_door() as door:
        door.grpc.queue.hold = True
        body = b'{"model": "vectors", "input": "bad"}'
        connection = await raw_post(door.address, "/v1/embeddings", body)
        await door.grpc.queue.until(lambda: bool(door.grpc.queue.requests))
        assert not door.grpc.queue.cancelled
        connection.cut()
        await door.grpc.queue.until(lambda: bool(door.grpc.queue.cancelled))


async def test_a_stop_lets_calls_end() -> None:
    async with web_door() as door, door.sdk() as sdk:
        door.grpc.queue.hold = True
        asking = asyncio.create_task(sdk.embeddings.create(model=VECTORS, input="bad"))
        await door.grpc.queue.until(lambda: bool(door.grpc.queue.requests))
        stopping = asyncio.create_task(door.http.stop(20))
        async with asyncio.timeout(60):
            while True:
                try:
                    (await asyncio.open_connection(*door.address.split(":")))[1].close()
                except OSError:
                    break
                await asyncio.sleep(0.01)
        door.grpc.queue.release(door.grpc.queue.requests[0].id)
        assert (await asking).data
        await stopping


async def test_models_are_listed_and_shown() -> None:
    loading = text_model("other", state=ModelState.LOADING)
    async with web_door(models=[embedder(), loading]) as door, door.sdk() as sdk:
        found = [model async for model in sdk.models.list()]
        assert [model.id for model in found] == ["other", VECTORS]
        one = await sdk.models.retrieve(VECTORS)
        assert (one.object, one.created, one.owned_by) == ("model", CREATED_S, "orchid")
        assert one.model_dump()["task"] == "embedding"
        assert one.model_dump()["state"] == "ready"
        with pytest.raises(openai.NotFoundError, match="'other', 'vectors'") as missing:
            await sdk.models.retrieve("a/b")
        assert (missing.value.code, missing.value.param) == ("model_not_found", "model")


async def test_health_is_liveness_and_readiness() -> None:
    async with web_door(models=[embedder(state=ModelState.LOADING)]) as door:
        waiting = await door.client.get("/health")
        assert waiting.status_code == 503
        assert waiting.json() == {
            "status": "not ready",
            "models": {VECTORS: {"state": "loading", "progress": 0.25}},
        }
        assert (await door.client.get("/health/live")).status_code == 200
        probe = await door.client.head("/health/live")
        assert (probe.status_code, probe.content) == (200, b"")
        door.grpc.serve([embedder()])
        ready = await door.client.get("/health")
        assert (ready.status_code, ready.json()["status"]) == (200, "ready")


async def test_a_model_of_another_task_is_named() -> None:
    async with web_door() as door:
        response = await door.post("/v1/embeddings", b'{"model": "tiny", "input": "bad"}')
        error = error_of(response, 400)
        assert error["param"] == "model"
        assert "text-classification" in error["message"]
        assert "'vectors'" in error["message"]
        assert MODEL in error["message"]
