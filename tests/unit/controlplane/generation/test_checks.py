"""Fields of an ask at and beyond their bounds."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from controlplane.deployed import GenerationSettings
from controlplane.errors import InvalidRequest
from controlplane.generation import checks
from controlplane.generation.checks import check_limits, check_prompt, check_sampling
from controlplane.generation.records import (
    ChatPrompt,
    GenerationLimits,
    Message,
    Prompt,
    Sampling,
    TextPrompt,
    TokenPrompt,
)

SETTINGS = GenerationSettings("", (1,), None, vocabulary=10, context=64)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"temperature": 10.0},
        {"top_p": 1.0},
        {"min_p": 1.0},
        {"repetition_penalty": 1.3},
        {"presence_penalty": -2.0},
        {"frequency_penalty": 2.0},
        {"top_k": 2**32 - 1},
        {"seed": 0},
        {"seed": 2**64 - 1},
    ],
)
def test_parameters_within_their_bounds(fields: dict[str, Any]) -> None:
    check_sampling(replace(Sampling(), **fields), SETTINGS)


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": -0.1},
        {"temperature": math.inf},
        {"top_p": 1.01},
        {"top_p": math.nan},
        {"min_p": -0.5},
        {"repetition_penalty": -1.0},
        {"repetition_penalty": 1e-300},
        {"presence_penalty": 2.1},
        {"frequency_penalty": -2.1},
        {"top_k": -1},
        {"seed": -1},
        {"seed": 2**64},
    ],
)
def test_parameters_beyond_their_bounds_are_named(fields: dict[str, Any]) -> None:
    (name,) = fields
    with pytest.raises(InvalidRequest, match=f"{name} is .*; accepted: "):
        check_sampling(replace(Sampling(), **fields), SETTINGS)


@pytest.mark.parametrize(
    ("bias", "told"),
    [
        ({10: 1.0}, "logit_bias holds 10; accepted: 0 to 9"),
        ({-1: 1.0}, "logit_bias holds -1"),
        ({3: 100.5}, "logit_bias of token 3 is 100.5; accepted: -100 to 100"),
        ({3: float("nan")}, "logit_bias of token 3 is nan"),
        (dict.fromkeys(range(1025), 0.0), "logit_bias has 1025 token ids; at most 1024"),
    ],
)
def test_biases_beyond_their_bounds_are_named(bias: dict[int, float], told: str) -> None:
    check_sampling(replace(Sampling(), logit_bias={0: -100.0, 9: 100.0}), SETTINGS)
    with pytest.raises(InvalidRequest, match=told):
        check_sampling(replace(Sampling(), logit_bias=bias), SETTINGS)


@pytest.mark.parametrize(
    "fields",
    [
        {"max_tokens": 0},
        {"n": checks.MOST_ANSWERS},
        {"logprobs": 0},
        {"stop": ["a" * checks.MOST_STOP_CHARACTERS] * checks.MOST_STOPS},
        {"stop_token_ids": [0, 9]},
    ],
)
def test_limits_within_their_bounds(fields: dict[str, Any]) -> None:
    check_limits(replace(GenerationLimits(), **fields), SETTINGS)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"max_tokens": -1}, "max_tokens is -1"),
        ({"n": 0}, "n is 0; accepted: 1 to 16"),
        ({"logprobs": -1}, "logprobs is -1"),
        ({"stop": ["a"] * (checks.MOST_STOPS + 1)}, "stop has 17 strings; at most 16"),
        ({"stop": ["a", ""]}, "stop string 1 has 0 characters"),
        ({"stop_token_ids": [10]}, "holds 10; accepted: 0 to 9"),
        ({"stop_token_ids": [-1]}, "holds -1"),
        ({"stop_token_ids": [1] * 65}, "65 ids; at most 64"),
    ],
)
def test_limits_beyond_their_bounds_are_named(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidRequest, match=told):
        check_limits(replace(GenerationLimits(), **fields), SETTINGS)


@pytest.mark.parametrize(
    ("prompt", "told"),
    [
        (TextPrompt("ü" * (2 << 20 | 1)), "text has 4194306 bytes; at most 4194304"),
        (ChatPrompt([Message("user", "x")] * 1025), "1025 messages; at most 1024"),
        (ChatPrompt([Message("User", "x")]), "role 'User'; accepted: system, user, assistant"),
        (ChatPrompt([Message("user", "x")], continues=True), "of 1 message is of role 'user'"),
        (ChatPrompt([Message("assistant", "x")], continues=True), "after another one"),
        (TokenPrompt([]), "at least one token"),
        (TokenPrompt([-1, 3]), "holds -1; accepted: 0 to 9"),
    ],
)
def test_prompts_that_cannot_be_read(prompt: Prompt, told: str) -> None:
    with pytest.raises(InvalidRequest, match=told):
        check_prompt(prompt, SETTINGS)
