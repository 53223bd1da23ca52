"""Every field of a generation's ask, checked; each error says what came and what is accepted."""

from __future__ import annotations

import math
from collections.abc import Mapping

from controlplane.deployed import GenerationSettings, ModelInfo
from controlplane.errors import InvalidRequest, NotFound
from controlplane.generation.records import (
    ChatPrompt,
    GenerationAsk,
    GenerationLimits,
    Prompt,
    Sampling,
    TextPrompt,
)
from controlplane.policy.records import RequestClass
from controlplane.wording import counted, listed, shown

ROLES = ("system", "user", "assistant")

MOST_TEXT_BYTES = 4 << 20
MOST_MESSAGES = 1024
MOST_ANSWERS = 16
MOST_ALTERNATIVES = 20
MOST_STOPS = 16
MOST_STOP_CHARACTERS = 256
MOST_STOP_TOKENS = 64
MOST_PROHIBITED = 64
MOST_NAME_CHARACTERS = 64
HOTTEST = 10.0
WEAKEST_PENALTY, STRONGEST_PENALTY = 0.01, 10.0
MOST_PENALTY = 2.0
MOST_BIAS = 100.0
MOST_BIASES = 1024
LARGEST_SEED = 2**64 - 1
LARGEST_TARGET_MS = 3_600_000


def check_ask(ask: GenerationAsk, model: ModelInfo) -> None:
    """Raises InvalidRequest, or NotFound for a variant that the model does not have."""
    settings = model.generation
    assert settings is not None
    check_prompt(ask.prompt, settings)
    check_sampling(ask.sampling, settings)
    check_limits(ask.limits, settings)
    check_class(ask.klass, model)
    for name, value in (
        ("first_token_target_ms", ask.first_token_target_ns),
        ("token_target_ms", ask.token_target_ns),
    ):
        if not 0 <= value <= LARGEST_TARGET_MS * 1_000_000:
            raise InvalidRequest(
                f"{name} is {value / 1e6:g}; accepted: 0 (the class's) to {LARGEST_TARGET_MS}"
            )


def check_prompt(prompt: Prompt, settings: GenerationSettings) -> None:
    """InvalidRequest when there is no prompt, or it is larger than a request may be."""
    if isinstance(prompt, TextPrompt):
        if not prompt.text:
            raise InvalidRequest("text is empty; a prompt has at least one character")
        _check_size("text", len(prompt.text.encode("utf-8", "replace")))
    elif isinstance(prompt, ChatPrompt):
        _check_chat(prompt)
    else:
        ids = prompt.ids
        if not ids:
            raise InvalidRequest("tokens.ids is empty; a prompt has at least one token")
        low, high = min(ids), max(ids)
        if low < 0 or high >= settings.vocabulary:
            raise InvalidRequest(
                f"tokens.ids holds {low if low < 0 else high}; "
                f"accepted: 0 to {settings.vocabulary - 1}, the model's vocabulary"
            )


def _check_chat(prompt: ChatPrompt) -> None:
    messages = prompt.messages
    if not messages:
        raise InvalidRequest("chat.messages is empty; a chat has at least one message")
    if len(messages) > MOST_MESSAGES:
        raise InvalidRequest(f"chat has {len(messages)} messages; at most {MOST_MESSAGES}")
    for number, message in enumerate(messages):
        if message.role not in ROLES:
            raise InvalidRequest(
                f"message {number} has role {shown(message.role)}; accepted: {', '.join(ROLES)}"
            )
    ends = messages[-1].role == "assistant"
    if prompt.continues and not (ends and len(messages) > 1):
        raise InvalidRequest(
            "continue_final_message goes on with the assistant's message after another one; the "
            f"last of {counted(len(messages), 'message')} is of role {shown(messages[-1].role)}"
        )
    if ends and not prompt.continues:
        raise InvalidRequest(
            "the last message is the assistant's; the answer follows one of user or system, or "
            "goes on with the assistant's when continue_final_message is true"
        )
    _check_size("chat", sum(len(m.content.encode("utf-8", "replace")) for m in messages))


def _check_size(name: str, size: int) -> None:
    if size > MOST_TEXT_BYTES:
        raise InvalidRequest(f"{name} has {size} bytes; at most {MOST_TEXT_BYTES}")


def check_sampling(sampling: Sampling, settings: GenerationSettings) -> None:
    """InvalidRequest when a parameter is outside of what it means."""
    _between("temperature", sampling.temperature, 0.0, HOTTEST)
    _between("top_p", sampling.top_p, 0.0, 1.0)
    _between("min_p", sampling.min_p, 0.0, 1.0)
    if sampling.repetition_penalty:
        _between(
            "repetition_penalty", sampling.repetition_penalty, WEAKEST_PENALTY, STRONGEST_PENALTY
        )
    _between("presence_penalty", sampling.presence_penalty, -MOST_PENALTY, MOST_PENALTY)
    _between("frequency_penalty", sampling.frequency_penalty, -MOST_PENALTY, MOST_PENALTY)
    _check_bias(sampling.logit_bias, settings)
    if sampling.top_k < 0:
        raise InvalidRequest(f"top_k is {sampling.top_k}; accepted: 0 (all) or more")
    if sampling.seed is not None and not 0 <= sampling.seed <= LARGEST_SEED:
        raise InvalidRequest(f"seed is {sampling.seed}; accepted: 0 to {LARGEST_SEED}")


def _check_bias(bias: Mapping[int, float], settings: GenerationSettings) -> None:
    if len(bias) > MOST_BIASES:
        raise InvalidRequest(f"logit_bias has {len(bias)} token ids; at most {MOST_BIASES}")
    for token, value in bias.items():
        if not 0 <= token < settings.vocabulary:
            raise InvalidRequest(
                f"logit_bias holds {token}; accepted: 0 to {settings.vocabulary - 1}"
            )
        _between(f"logit_bias of token {token}", value, -MOST_BIAS, MOST_BIAS)


def check_limits(limits: GenerationLimits, settings: GenerationSettings) -> None:
    """InvalidRequest when a limit cannot be kept."""
    if limits.max_tokens < 0:
        raise InvalidRequest(
            f"max_tokens is {limits.max_tokens}; accepted: 0 (what the context leaves) or more"
        )
    if not 1 <= limits.n <= MOST_ANSWERS:
        raise InvalidRequest(f"n is {limits.n}; accepted: 1 to {MOST_ANSWERS}")
    if limits.logprobs is not None and not 0 <= limits.logprobs <= MOST_ALTERNATIVES:
        raise InvalidRequest(f"logprobs is {limits.logprobs}; accepted: 0 to {MOST_ALTERNATIVES}")
    if len(limits.stop) > MOST_STOPS:
        raise InvalidRequest(f"stop has {len(limits.stop)} strings; at most {MOST_STOPS}")
    for number, text in enumerate(limits.stop):
        if not 1 <= len(text) <= MOST_STOP_CHARACTERS:
            raise InvalidRequest(
                f"stop string {number} has {len(text)} characters; "
                f"accepted: 1 to {MOST_STOP_CHARACTERS}"
            )
    tokens = limits.stop_token_ids
    if len(tokens) > MOST_STOP_TOKENS:
        raise InvalidRequest(f"stop_token_ids has {len(tokens)} ids; at most {MOST_STOP_TOKENS}")
    for token in tokens:
        if not 0 <= token < settings.vocabulary:
            raise InvalidRequest(
                f"stop_token_ids holds {token}; accepted: 0 to {settings.vocabulary - 1}"
            )


def check_class(klass: RequestClass, model: ModelInfo) -> None:
    """InvalidRequest for names too long or a quality outside 0 to 1, NotFound for a variant."""
    for field, value in (
        ("tenant", klass.tenant),
        ("request_class", klass.name),
        ("privacy_class", klass.privacy_class),
    ):
        if len(value) > MOST_NAME_CHARACTERS:
            raise InvalidRequest(
                f"{field} has {len(value)} characters; at most {MOST_NAME_CHARACTERS}"
            )
    _between("minimum_quality", klass.minimum_quality, 0.0, 1.0)
    if len(klass.prohibited) > MOST_PROHIBITED:
        raise InvalidRequest(
            f"{len(klass.prohibited)} prohibited variants; at most {MOST_PROHIBITED}"
        )
    known = {variant.name for variant in model.variants}
    named = {klass.variant} if klass.variant else set()
    for name in sorted(named | klass.prohibited):
        if name not in known:
            raise NotFound(
                f"no worker has variant {shown(name)} of model {shown(model.name)}; they have: "
                f"{listed(known)} (of each model a decode worker loads one)"
            )


def _between(name: str, value: float, low: float, high: float) -> None:
    if not (math.isfinite(value) and low <= value <= high):
        raise InvalidRequest(f"{name} is {value:g}; accepted: {low:g} to {high:g}")
