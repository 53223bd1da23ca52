"""What a chat or a completion may not ask is refused by the field's name; the rest is accepted."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.contract.controlplane.decode_worker import WRITER, DecodeWorker
from tests.contract.controlplane.http_door import error_of, web_writers

HELLO: list[Any] = [{"role": "user", "content": "once upon"}]
# The prompt as the template renders it, which the default script says again.
RENDERED = "<user> once upon <assistant> "

CHAT: dict[str, Any] = {"model": WRITER, "messages": HELLO}
COMPLETION: dict[str, Any] = {"model": WRITER, "prompt": "once"}


@pytest.mark.parametrize(
    ("path", "changes", "param", "words"),
    [
        ("chat", {"messages": []}, "messages", "must have at least 1, has 0"),
        ("chat", {"messages": "hi"}, "messages", "got a string"),
        ("chat", {"messages": [5]}, "messages.0", "got 5"),
        ("chat", {"messages": [{"content": "x"}]}, "messages.0.role", "is required"),
        ("chat", {"messages": [{"role": "tool", "content": "x"}]}, "messages.0.role", "'tool'"),
        ("chat", {"messages": [{"role": "user"}]}, "messages.0.content", "got null"),
        (
            "chat",
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages.0.content.0.type",
            "only \"text\" is supported, got 'image_url'",
        ),
        (
            "chat",
            {"messages": [{"role": "user", "content": [{"type": "text", "text": 1}]}]},
            "messages.0.content.0.text",
            "got 1",
        ),
        ("chat", {"messages": [{"role": "assistant", "content": "x"}]}, None, "the assistant's"),
        ("chat", {"tools": [{"type": "function"}]}, "tools", "not supported"),
        ("chat", {"response_format": {"type": "json_object"}}, "response_format", "json_object"),
        ("chat", {"modalities": ["audio"]}, "modalities", "only"),
        ("chat", {"top_logprobs": 2}, "top_logprobs", "needs logprobs"),
        ("chat", {"logprobs": 2}, "logprobs", "got 2"),
        ("chat", {"max_tokens": 3, "max_completion_tokens": 4}, "max_completion_tokens", "is 4"),
        ("chat", {"n": 0}, "n", "got 0"),
        ("chat", {"n": 17}, None, "n is 17"),
        ("chat", {"temperature": 2.5}, "temperature", "got 2.5"),
        ("chat", {"first_token_target_ms": 1e308}, "first_token_target_ms", "equal to 3600000"),
        ("chat", {"token_target_ms": -1}, "token_target_ms", "got -1"),
        ("chat", {"repetition_penalty": 1e-300}, None, "accepted: 0.01 to 10"),
        ("chat", {"top_p": 0}, "top_p", "greater than 0"),
        ("chat", {"presence_penalty": 2.5}, "presence_penalty", "less than or equal to 2"),
        ("chat", {"logit_bias": {"the": 1}}, "logit_bias", "token ids as its names"),
        ("chat", {"logit_bias": {"5": "x"}}, "logit_bias", "of token 5 must be a number"),
        ("chat", {"logit_bias": {"5": 10**400}}, "logit_bias", "-100 to 100"),
        ("chat", {"logit_bias": {"99": 1}}, None, "logit_bias holds 99"),
        ("chat", {"guided_json": {"type": "object"}}, "guided_json", "not held to a form"),
        ("chat", {"min_tokens": 5}, "min_tokens", "ignore_eos"),
        ("chat", {"add_generation_prompt": False}, "add_generation_prompt", "must be true"),
        ("chat", {"continue_final_message": True}, None, "of 1 message is of role 'user'"),
        ("completion", {"n_predict": 5}, "n_predict", "called max_tokens"),
        ("completion", {"repeat_penalty": 1.1}, "repeat_penalty", "repetition_penalty"),
        ("chat", {"stop": 5}, "stop", "must be a string or an array of strings"),
        ("chat", {"stop": ["a", None]}, "stop.1", "got null"),
        ("chat", {"seed": 2**64}, "seed", "less than"),
        ("chat", {"stream_options": {"include_usage": True}}, "stream_options", "needs stream"),
        ("chat", {"stop_token_ids": [99]}, None, "stop_token_ids holds 99"),
        ("completion", {"prompt": []}, "prompt", "got an empty array"),
        ("completion", {"prompt": ""}, None, "at least one character"),
        ("completion", {"prompt": ["x"] * 17}, "prompt", "at most 16"),
        ("completion", {"prompt": [99]}, None, "the model's vocabulary"),
        ("completion", {"echo": True}, "echo", "not supported"),
        ("completion", {"suffix": "x"}, "suffix", "not supported"),
        ("completion", {"best_of": 3}, "best_of", "as many as n"),
        ("completion", {"logprobs": 21}, "logprobs", "got 21"),
        ("completion", {"max_tokens": 0}, "max_tokens", "got 0"),
        ("completion", {"max_tokens": 10**6}, None, "context"),
    ],
)
async def test_what_is_not_supported_is_refused_by_name(
    path: str, changes: dict[str, Any], param: str | None, words: str
) -> None:
    route = "/v1/chat/completions" if path == "chat" else "/v1/completions"
    sound = CHAT if path == "chat" else COMPLETION
    async with web_writers(DecodeWorker()) as web:
        response = await web.post(route, json.dumps({**sound, **changes}).encode())
        error = error_of(response, 400)
        assert words in error["message"]
        assert error["param"] == param


async def test_what_clients_send_along_changes_nothing() -> None:
    async with web_writers(DecodeWorker()) as web, web.sdk() as sdk:
        made = await sdk.chat.completions.create(
            model=WRITER,
            messages=HELLO,
            frequency_penalty=0,
            presence_penalty=0,
            logit_bias={},
            tools=[],
            response_format={"type": "text"},
            modalities=["text"],
            parallel_tool_calls=True,
            service_tier="auto",
            store=False,
            metadata={"a": "b"},
            reasoning_effort="low",
            extra_body={
                "whatever": 1,
                "guided_json": None,
                "min_tokens": 0,
                "use_beam_search": False,
                "skip_special_tokens": True,
                "repeat_penalty": 1.0,
            },
        )
        assert made.choices[0].message.content == RENDERED
