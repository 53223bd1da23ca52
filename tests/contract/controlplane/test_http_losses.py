"""Workers lost under HTTP callers: who has seen nothing gets another's answer, who has is told."""

from __future__ import annotations

from typing import Any

import grpc
import openai
import pytest

from protos.orchid.v1 import worker_pb2
from tests.contract.controlplane.decode_worker import (
    WRITER,
    DecodeWorker,
    admitted,
    delta,
    dying,
    echo,
    endless,
    full,
)
from tests.contract.controlplane.http_door import WebWriters, web_writers
from tests.contract.controlplane.http_scripts import choral

HELLO: list[Any] = [{"role": "user", "content": "once upon"}]
# The prompt as the template renders it, which the default script says again.
RENDERED = "<user> once upon <assistant> "


async def breaking(worker: DecodeWorker, call: worker_pb2.GenerateCall, context: Any) -> None:
    """Breaks after two tokens of its last answer."""
    await context.write(admitted(call))
    await context.write(delta("lost ", 4, index=call.limits.n - 1))
    await context.write(delta("words ", 5, index=call.limits.n - 1))
    await context.abort(grpc.StatusCode.UNAVAILABLE, "the engine is gone")


async def crowded(worker: DecodeWorker, call: worker_pb2.GenerateCall, context: Any) -> None:
    """Refuses a first token's target of less than 10 s."""
    await (echo if call.first_token_target_us > 10_000_000 else full)(worker, call, context)


async def before(web: WebWriters, second: DecodeWorker) -> None:
    """Another worker, which is busier, so that the one that breaks is asked first."""
    await web.house.join(second)
    await web.house.load(second, pending_prompt_tokens=500)


async def test_a_worker_that_breaks_before_a_token_is_unavailable() -> None:
    async with web_writers(DecodeWorker(script=dying)) as web, web.sdk() as sdk:
        with pytest.raises(openai.InternalServerError) as gone:
            await sdk.chat.completions.create(model=WRITER, messages=HELLO)
        assert gone.value.status_code == 503


async def test_a_worker_lost_in_the_middle_ends_the_stream_with_an_error() -> None:
    worker = DecodeWorker(script=endless)
    async with web_writers(worker) as web, web.sdk() as sdk:
        stream = await sdk.chat.completions.create(model=WRITER, messages=HELLO, stream=True)
        seen = [(await anext(stream)).choices[0].delta.content for _ in range(2)]
        assert seen == ["once ", "upon "]
        await web.house.join(DecodeWorker("second"))
        await web.house.kill(worker)
        with pytest.raises(openai.APIError, match="was lost after 2 tokens") as lost:
            await anext(stream)
        assert lost.value.code == "unavailable"
        await web.house.at_rest()


async def test_a_whole_answer_is_begun_again_by_another_worker() -> None:
    first, second = DecodeWorker("first", script=breaking), DecodeWorker("second")
    async with web_writers(first) as web, web.sdk() as sdk:
        await before(web, second)
        answer = await sdk.chat.completions.create(model=WRITER, messages=HELLO)
        assert answer.choices[0].message.content == RENDERED
        assert answer.usage is not None and answer.usage.completion_tokens == 4
        assert (len(first.calls), len(second.calls)) == (1, 1)
        await web.house.at_rest()
        (generator,) = (await web.house.status()).generators
        assert generator.redispatched == 1 and dict(generator.outcomes) == {"answered": 1}


async def test_only_the_prompts_of_a_lost_worker_are_begun_again() -> None:
    first, second = DecodeWorker("first", script=breaking), DecodeWorker("second", script=choral)
    async with web_writers(first) as web, web.sdk() as sdk:
        await before(web, second)
        answer = await sdk.completions.create(
            model=WRITER, prompt=["once upon", "time a", "upon a"], n=2
        )
        assert [choice.text for choice in answer.choices] == [
            *("0 once", "1 once"),
            *("0 time", "1 time"),
            *("0 upon", "1 upon"),
        ]
        assert len(first.calls) >= 1 and len(second.calls) == 3
        await web.house.at_rest()


async def test_a_crowded_worker_is_asked_again_without_the_target_that_was_lost() -> None:
    first, second = DecodeWorker("first", script=breaking), DecodeWorker("second", script=crowded)
    async with web_writers(first) as web, web.sdk() as sdk:
        await before(web, second)
        answer = await sdk.chat.completions.create(model=WRITER, messages=HELLO)
        assert answer.choices[0].message.content == RENDERED
        hurried, patient = [call.first_token_target_us for call in second.calls]
        assert hurried < 10_000_000 < patient < second.calls[1].budget_us
        assert len(first.calls) == 1
        await web.house.at_rest()


async def test_a_worker_that_has_no_place_at_all_is_asked_twice_and_no_more() -> None:
    first, second = DecodeWorker("first", script=breaking), DecodeWorker("second", script=full)
    async with web_writers(first) as web, web.sdk() as sdk:
        await before(web, second)
        with pytest.raises(openai.RateLimitError, match="the arena is full"):
            await sdk.chat.completions.create(model=WRITER, messages=HELLO)
        assert (len(first.calls), len(second.calls)) == (1, 2)
        await web.house.at_rest()


async def test_a_whole_answer_that_nobody_else_can_make_is_not_said_to_hold() -> None:
    async with web_writers(DecodeWorker(script=breaking)) as web, web.sdk() as sdk:
        with pytest.raises(openai.InternalServerError) as gone:
            await sdk.chat.completions.create(model=WRITER, messages=HELLO)
        assert gone.value.status_code == 503
        assert "lost before its answer was whole and no other decode worker" in str(gone.value)
        await web.house.at_rest()
