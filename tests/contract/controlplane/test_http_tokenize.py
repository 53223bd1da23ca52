"""POST /tokenize, and what callers hear who look for other servers' routes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from controlplane.tenants import TenantConfig, TenantsConfig
from tests.contract.controlplane.decode_worker import WRITER, DecodeWorker
from tests.contract.controlplane.http_door import (
    VECTORS,
    WebWriters,
    error_of,
    web_door,
    web_writers,
)

# Of the model that the worker here has.
CONTEXT = 64
CHAT = [{"role": "system", "content": "once"}, {"role": "user", "content": "upon"}]


async def tokens(web: WebWriters, **fields: Any) -> Any:
    response = await web.post("/tokenize", json.dumps({"model": WRITER, **fields}).encode())
    assert response.status_code == 200, response.content
    return response.json()


async def test_tokens_are_those_that_a_worker_gets() -> None:
    worker = DecodeWorker()
    async with web_writers(worker) as web, web.sdk() as sdk:
        chat = await tokens(web, messages=CHAT)
        text = await tokens(web, prompt="once upon", add_special_tokens=True)
        assert not worker.calls
        await sdk.chat.completions.create(model=WRITER, messages=CHAT)  # type: ignore[arg-type]
        await sdk.completions.create(model=WRITER, prompt="once upon")
        first, second = (list(call.prompt) for call in worker.calls)
        assert (chat["tokens"], chat["count"]) == (first, len(first))
        assert (text["tokens"], text["count"]) == (second, len(second))
        assert chat["max_model_len"] == CONTEXT
        (model,) = (await sdk.models.list()).data
        assert model.model_dump()["max_model_len"] == CONTEXT
        # Longer than the context is counted, too: that is what one asks for.
        assert (await tokens(web, prompt="once " * (CONTEXT + 1)))["count"] > CONTEXT


async def test_an_answer_goes_on_with_what_the_assistant_began() -> None:
    worker = DecodeWorker()
    begun = [{"role": "user", "content": "once"}, {"role": "assistant", "content": "upon a"}]
    asked = {"continue_final_message": True, "add_generation_prompt": False}
    async with web_writers(worker) as web, web.sdk() as sdk:
        turn = (await tokens(web, messages=begun[:1]))["tokens"]
        counted = (await tokens(web, messages=begun, **asked))["tokens"]
        await sdk.chat.completions.create(
            model=WRITER,
            messages=begun,  # type: ignore[arg-type]
            extra_body=asked,
        )
        prompt = list(worker.calls[-1].prompt)
        # The template's turn of the assistant is open, and ends with the text.
        assert prompt == counted == [*turn, *(await tokens(web, prompt="upon a"))["tokens"]]
        body = json.dumps({"model": WRITER, "messages": begun}).encode()
        error = error_of(await web.post("/v1/chat/completions", body), 400)
        assert "when continue_final_message is true" in error["message"]


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({}, "prompt", "is required unless there are messages"),
        ({"prompt": "x", "messages": CHAT}, "prompt", "of which one is taken"),
        ({"prompt": ["x"]}, "prompt", "got an array"),
        ({"prompt": ""}, None, "at least one character"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.role", "accepted"),
        ({"prompt": "x", "add_special_tokens": False}, "add_special_tokens", "must be true"),
        ({"prompt": "x", "return_token_strs": True}, "return_token_strs", "not supported"),
    ],
)
async def test_each_fault_is_named(fields: dict[str, Any], param: str | None, words: str) -> None:
    async with web_writers(DecodeWorker()) as web:
        body = json.dumps({"model": WRITER, **fields}).encode()
        error = error_of(await web.post("/tokenize", body), 400)
        assert error["param"] == param and words in error["message"]


async def test_whoever_may_not_ask_a_model_does_not_count_with_it() -> None:
    tenants = TenantsConfig(named={"lab": TenantConfig(models=("other",))})
    async with web_writers(DecodeWorker(), tenants=tenants) as web:
        web.house.generations.quotas.set_tenancy(web.house.dispatcher.tenancy)
        body = json.dumps({"model": WRITER, "prompt": "once", "tenant": "lab"}).encode()
        assert error_of(await web.post("/tokenize", body), 403)["code"] == "permission_denied"
        # A name that is nowhere is a wrong name to everybody.
        body = json.dumps({"model": "nope", "prompt": "once", "tenant": "lab"}).encode()
        assert error_of(await web.post("/tokenize", body), 404)["code"] == "model_not_found"
        assert (await tokens(web, prompt="once", tenant="shop"))["count"]


async def test_models_that_do_not_generate_and_unknown_ones() -> None:
    async with web_door() as web:
        body = json.dumps({"model": VECTORS, "prompt": "x"}).encode()
        assert "does not generate" in error_of(await web.post("/tokenize", body), 400)["message"]
        body = json.dumps({"model": "nope", "prompt": "x"}).encode()
        assert error_of(await web.post("/tokenize", body), 404)["code"] == "model_not_found"


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("/v1/responses", "POST /v1/chat/completions"),
        ("/metrics", "orchid status"),
        ("/v2/models/writer/generate_stream", "/v1/chat/completions"),
        ("/chat/completions", "base URL"),
        ("/v3/chat/completions", "base URL"),
        ("/v1/nothing", "docs/openai-http.md lists what is"),
    ],
)
async def test_who_looks_elsewhere_is_told_where_it_is(path: str, hint: str) -> None:
    async with web_door() as web:
        response = await web.post(path, b"{}")
        assert response.status_code == 404 and hint in response.text
