"""Chats and completions as OpenAI's client asks them, before decode workers that play a script."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import openai
import pytest

from controlplane.config import ClassConfig
from tests.contract.controlplane.decode_worker import (
    WRITER,
    DecodeWorker,
    endless,
    full,
    silent,
)
from tests.contract.controlplane.fake_worker import until
from tests.contract.controlplane.http_door import CREATED_S, error_of, raw_post, web_writers
from tests.contract.controlplane.http_scripts import choral, counting, late, torrent

HELLO: list[Any] = [{"role": "user", "content": "once upon"}]
# The prompt as the template renders it, which the default script says again.
RENDERED = "<user> once upon <assistant> "


async def test_a_chat_is_answered_whole() -> None:
    async with web_writers(DecodeWorker()) as web, web.sdk() as sdk:
        made = await sdk.chat.completions.create(model=WRITER, messages=HELLO)
        assert made.object == "chat.completion"
        assert made.id.startswith("chatcmpl-")
        assert (made.created, made.model) == (CREATED_S, WRITER)
        (choice,) = made.choices
        assert choice.message.role == "assistant"
        assert choice.message.content == RENDERED
        assert (choice.index, choice.finish_reason, choice.logprobs) == (0, "length", None)
        assert made.usage is not None
        assert (made.usage.prompt_tokens, made.usage.completion_tokens) == (4, 4)
        assert made.usage.total_tokens == 8
        assert made.system_fingerprint == "fp_w_writer-q4"
        assert made.model_dump()["orchid"]["generations"][0]["first_token_ms"] == 0.9
        await web.house.at_rest()


async def test_a_chat_is_streamed() -> None:
    async with web_writers(DecodeWorker()) as web, web.sdk() as sdk:
        stream = await sdk.chat.completions.create(
            model=WRITER,
            messages=HELLO,
            stream=True,
            stream_options={"include_usage": True},
            extra_headers={"x-request-id": "r1"},
        )
        assert stream.response.headers["x-orchid-variant"] == "writer-q4"
        assert stream.response.headers["content-type"].startswith("text/event-stream")
        pieces = [piece async for piece in stream]
        assert {piece.id for piece in pieces} == {"chatcmpl-r1"}
        assert {piece.object for piece in pieces} == {"chat.completion.chunk"}
        *told, last = pieces
        assert last.choices == []
        assert last.usage is not None
        assert last.usage.completion_tokens == 4
        assert all(piece.usage is None for piece in told)
        assert [piece.choices[0].delta.role for piece in told] == ["assistant", *[None] * 4]
        assert "".join(piece.choices[0].delta.content or "" for piece in told) == RENDERED
        assert [piece.choices[0].finish_reason for piece in told] == [*[None] * 4, "length"]


async def test_completions_take_every_form_of_prompt() -> None:
    async with web_writers(DecodeWorker()) as web, web.sdk() as sdk:
        text = await sdk.completions.create(model=WRITER, prompt="once upon a time")
        assert text.object == "text_completion"
        assert text.choices[0].text == "once upon a time "
        ids = await sdk.completions.create(model=WRITER, prompt=[4, 5], max_tokens=1)
        assert ids.choices[0].text == "once "
        many = await sdk.completions.create(model=WRITER, prompt=["once", "upon a", "time"])
        assert [(c.index, c.text) for c in many.choices] == [
            (0, "once "),
            (1, "upon a "),
            (2, "time "),
        ]
        assert many.usage is not None
        assert (many.usage.prompt_tokens, many.usage.completion_tokens) == (4, 4)
        rows = await sdk.completions.create(model=WRITER, prompt=[[4], [7, 6]])
        assert [choice.text for choice in rows.choices] == ["once ", "time a "]
        await web.house.at_rest()


async def test_several_prompts_and_answers_share_a_stream() -> None:
    async with web_writers(DecodeWorker(script=choral)) as web, web.sdk() as sdk:
        stream = await sdk.completions.create(
            model=WRITER,
            prompt=["once", "time"],
            n=2,
            stream=True,
            stream_options={"include_usage": True},
        )
        texts = [""] * 4
        ends = []
        usage = None
        async for piece in stream:
            usage = piece.usage or usage
            for choice in piece.choices:
                texts[choice.index] += choice.text
                if choice.finish_reason:
                    ends.append((choice.index, choice.finish_reason))
        assert texts == ["0 once", "1 once", "0 time", "1 time"]
        assert sorted(ends) == [(index, "stop") for index in range(4)]
        assert usage is not None
        assert (usage.prompt_tokens, usage.completion_tokens) == (2, 8)
        assert usage.prompt_tokens_details is not None
        assert usage.prompt_tokens_details.cached_tokens == 2


async def test_several_answers_of_a_chat() -> None:
    async with web_writers(DecodeWorker(script=choral)) as web, web.sdk() as sdk:
        made = await sdk.chat.completions.create(model=WRITER, messages=HELLO, n=3, stop=["END"])
        assert [c.message.content for c in made.choices] == [f"{i} <user>" for i in range(3)]
        assert made.choices[0].model_dump()["stop_reason"] == "END"
        stream = await sdk.chat.completions.create(model=WRITER, messages=HELLO, n=2, stream=True)
        speakers = [piece.choices[0].index async for piece in stream if piece.choices[0].delta.role]
        assert speakers == [0, 1]


async def test_what_is_asked_reaches_the_worker() -> None:
    worker = DecodeWorker()
    async with web_writers(worker) as web, web.sdk() as sdk:
        await sdk.chat.completions.create(
            model=WRITER,
            messages=[
                {"role": "developer", "content": "once"},
                {"role": "user", "content": [{"type": "text", "text": "upon"}]},
            ],
            max_completion_tokens=3,
            temperature=0.5,
            top_p=0.9,
            seed=-1,
            presence_penalty=0.5,
            frequency_penalty=-1,
            logit_bias={"3": -100, "4": 1},
            stop="x",
            logprobs=True,
            top_logprobs=2,
            user="someone",
            extra_body={
                "top_k": 7,
                "min_p": 0.05,
                "repetition_penalty": 1.1,
                "stop_token_ids": [3],
                "ignore_eos": True,
                "deadline_ms": 50_000,
                "first_token_target_ms": 40_000,
                "token_target_ms": 900,
            },
        )
        call = worker.calls[-1]
        # <system> is not in the vocabulary, so the template's turn begins with <s>.
        assert list(call.prompt) == [0, 4, 2, 5, 3]
        sampling = call.sampling
        assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.5, 0.9, 7)
        assert (sampling.min_p, sampling.repetition_penalty) == (0.05, 1.1)
        assert sampling.seed == 2**64 - 1
        assert (sampling.presence_penalty, sampling.frequency_penalty) == (0.5, -1)
        assert dict(sampling.logit_bias) == {3: -100, 4: 1}
        assert call.limits.max_tokens == 3
        assert list(call.limits.stop) == ["x"]
        assert list(call.limits.stop_token_ids) == [3]
        assert call.limits.logprobs == 2
        assert call.limits.ignore_end
        assert call.tenant == "someone"
        assert 0 < call.budget_us <= 50_000_000
        assert call.token_target_us == 900_000

        await sdk.completions.create(model=WRITER, prompt="once")
        plain = worker.calls[-1]
        assert plain.limits.max_tokens == 16
        assert (plain.sampling.temperature, plain.sampling.top_p) == (1.0, 1.0)
        assert not plain.sampling.HasField("seed")
        await sdk.completions.create(
            model=WRITER, prompt="once", temperature=0, extra_body={"top_k": -1}
        )
        assert worker.calls[-1].sampling.temperature == 0
        assert worker.calls[-1].sampling.top_k == 0


async def test_patience_is_a_deadline_of_whole_answers_only() -> None:
    worker = DecodeWorker()
    async with web_writers(worker) as web, web.sdk(timeout=60.0) as sdk:
        await sdk.completions.create(model=WRITER, prompt="once")
        assert worker.calls[-1].budget_us <= 60_000_000
        stream = await sdk.completions.create(model=WRITER, prompt="once", stream=True)
        assert [piece async for piece in stream]
        assert worker.calls[-1].budget_us > 100_000_000


async def test_headers_reach_the_worker() -> None:
    worker = DecodeWorker()
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    patient = ClassConfig(token_target_ms=777)
    async with web_writers(worker, classes={"patient": patient}) as web, web.sdk() as sdk:
        await sdk.completions.create(
            model=WRITER,
            prompt="once",
            user="someone",
            extra_headers={
                "x-orchid-deadline-ms": "60000",
                "x-orchid-tenant": "team",
                "x-orchid-request-class": "patient",
                "traceparent": parent,
            },
        )
        call = worker.calls[-1]
        assert call.budget_us <= 60_000_000
        assert (call.tenant, call.token_target_us) == ("team", 777_000)
        assert call.traceparent == parent
        with pytest.raises(openai.BadRequestError, match="unknown request class"):
            await sdk.completions.create(
                model=WRITER, prompt="once", extra_headers={"x-orchid-request-class": "nowhere"}
            )


async def test_log_probabilities_of_a_chat() -> None:
    async with web_writers(DecodeWorker(script=counting)) as web, web.sdk() as sdk:
        made = await sdk.chat.completions.create(
            model=WRITER, messages=HELLO, logprobs=True, top_logprobs=1
        )
        assert made.choices[0].message.content == "a €"
        told = made.choices[0].logprobs
        assert told is not None
        assert told.content is not None
        assert [each.token for each in told.content] == ["a", " \\xe2\\x82", "\\xac"]
        assert [each.bytes for each in told.content] == [[97], [32, 0xE2, 0x82], [0xAC]]
        assert [each.logprob for each in told.content] == [-0.5, -1.5, -2.5]
        (other,) = told.content[0].top_logprobs
        assert (other.token, other.logprob) == ("z", -9999.0)
        stream = await sdk.chat.completions.create(
            model=WRITER, messages=HELLO, logprobs=True, stream=True
        )
        pieces = [piece.choices[0] async for piece in stream]
        tokens = [piece.logprobs.content for piece in pieces if piece.logprobs]
        assert [t[0].token for t in tokens if t] == ["a", " \\xe2\\x82", "\\xac"]
        assert all(not t[0].top_logprobs for t in tokens if t)


async def test_log_probabilities_of_a_completion() -> None:
    async with web_writers(DecodeWorker(script=counting)) as web, web.sdk() as sdk:
        made = await sdk.completions.create(model=WRITER, prompt="once", logprobs=1)
        told = made.choices[0].logprobs
        assert told is not None
        assert told.tokens == ["a", "bytes:\\x20\\xe2\\x82", "bytes:\\xac"]
        assert told.token_logprobs == [-0.5, -1.5, -2.5]
        assert told.top_logprobs == [{"z": -9999.0}] * 3
        # "a", " " and the first two bytes of the sign, then the rest of the sign.
        assert told.text_offset == [0, 1, 2]
        stream = await sdk.completions.create(model=WRITER, prompt="once", logprobs=0, stream=True)
        offsets = [p.choices[0].logprobs.text_offset async for p in stream if p.choices[0].logprobs]
        assert offsets == [[0], [1], [2]]


async def test_a_deadline_cuts_an_answer_short_or_leaves_none() -> None:
    async with web_writers(DecodeWorker(script=late)) as web, web.sdk() as sdk:
        some = await sdk.completions.create(model=WRITER, prompt="once upon a time")
        assert some.choices[0].text == "time "
        assert some.choices[0].finish_reason == "length"
        assert some.choices[0].model_dump()["stop_reason"] == "deadline"
        with pytest.raises(openai.InternalServerError, match="before the first token") as none:
            await sdk.completions.create(model=WRITER, prompt="once")
        assert none.value.status_code == 504


async def test_refusals_of_the_worker_reach_the_client() -> None:
    async with web_writers(DecodeWorker(script=full)) as web, web.sdk() as sdk:
        for stream in (False, True):
            with pytest.raises(openai.RateLimitError, match="the arena is full") as limited:
                await sdk.chat.completions.create(model=WRITER, messages=HELLO, stream=stream)
            assert limited.value.response.headers["retry-after-ms"] == "70"
        with pytest.raises(openai.RateLimitError):
            await sdk.completions.create(model=WRITER, prompt=["once", "upon"], stream=True)
        await web.house.at_rest()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prompt", ['"once"', '["once", "upon", "a"]'])
async def test_a_cut_connection_frees_everything_at_once(stream: bool, prompt: str) -> None:
    worker = DecodeWorker(script=endless)
    async with web_writers(worker) as web:
        body = f'{{"model": "writer", "prompt": {prompt}, "stream": {str(stream).lower()}}}'
        connection = await raw_post(web.address, "/v1/completions", body.encode())
        prompts = len(json.loads(prompt)) if prompt.startswith("[") else 1
        await until(lambda: worker.open == prompts, "every prompt is being answered")
        if stream:
            await connection.reader.readuntil(b"upon ")
        connection.cut()
        await until(lambda: worker.open == 0, "the worker's calls are cancelled")
        await web.house.at_rest()


async def test_a_client_that_closes_a_stream_ends_the_generation() -> None:
    worker = DecodeWorker(script=endless)
    async with web_writers(worker) as web, web.sdk() as sdk:
        stream = await sdk.chat.completions.create(model=WRITER, messages=HELLO, stream=True)
        await anext(stream)
        await stream.close()
        await until(lambda: worker.open == 0, "the worker's call is cancelled")


async def test_a_slow_reader_holds_back_its_own_generation() -> None:
    worker = DecodeWorker(script=torrent)
    async with web_writers(worker) as web:
        body = b'{"model": "writer", "prompt": "once", "stream": true, "max_tokens": 100000}'
        connection = await raw_post(web.address, "/v1/completions", body)
        await connection.reader.readuntil(b"\r\n\r\n")
        connection.writer.transport.pause_reading()  # type: ignore[attr-defined]
        before = -1
        while worker.written != before:
            before = worker.written
            await asyncio.sleep(0.5)
        # What the sockets and transports hold is bounded; 20 kB a piece.
        assert worker.written < 1000
        assert (await web.client.get("/health")).status_code == 200
        connection.cut()
        await until(lambda: worker.open == 0, "the worker's call is cancelled")


async def test_a_reader_that_stands_still_is_let_go_after_its_deadline() -> None:
    worker = DecodeWorker(script=torrent)
    async with web_writers(worker) as web:
        body = b'{"model": "writer", "prompt": "once", "stream": true, "deadline_ms": 700}'
        connection = await raw_post(web.address, "/v1/completions", body)
        await connection.reader.readuntil(b"\r\n\r\n")
        connection.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await until(lambda: worker.open == 0, "the worker's call is over")
        await web.house.at_rest()
        connection.cut()


async def test_a_stop_tells_readers_of_streams() -> None:
    worker = DecodeWorker(script=endless)
    async with web_writers(worker) as web, web.sdk() as sdk:
        stream = await sdk.chat.completions.create(model=WRITER, messages=HELLO, stream=True)
        await anext(stream)
        stopping = asyncio.create_task(web.http.stop(20))
        web.house.generations.close()
        with pytest.raises(openai.APIError, match="shutting down"):
            async for _ in stream:
                pass
        await stopping


async def test_models_that_do_not_generate_or_are_not_here() -> None:
    async with web_writers(DecodeWorker(script=silent)) as web, web.sdk() as sdk:
        with pytest.raises(openai.NotFoundError, match="'writer'") as missing:
            await sdk.chat.completions.create(model="nope", messages=HELLO)
        assert missing.value.code == "model_not_found"
        found = await web.post("/v1/embeddings", b'{"model": "writer", "input": "once"}')
        assert "text-generation" in error_of(found, 400)["message"]
