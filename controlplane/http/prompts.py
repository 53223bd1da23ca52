"""What bodies of generations ask for, as asks; everything that is not supported is refused here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from controlplane.config import ControlPlaneConfig
from controlplane.generation.checks import MOST_BIAS
from controlplane.generation.records import (
    ChatPrompt,
    GenerationAsk,
    GenerationLimits,
    Message,
    Prompt,
    Sampling,
    TextPrompt,
    TokenPrompt,
)
from controlplane.http.asks import class_asked, deadline_of
from controlplane.http.calls import Call
from controlplane.http.fields import (
    ChatBody,
    ChatTurn,
    CompletionBody,
    GenerationBody,
    TokenizeBody,
    content_list,
    kind_of,
    text_list,
)
from controlplane.http.foreign import refuse_foreign
from controlplane.http.problems import InvalidField
from controlplane.wording import shown

_MS = 1_000_000
_SEEDS = 1 << 64
# What OpenAI gives a completion that asks for no number of tokens.
_USUAL_COMPLETION = 16
MOST_PROMPTS = 16
_TOKEN_DIGITS = 10
# "developer" is what OpenAI calls the system's role now.
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}


def chat_ask(call: Call, body: ChatBody, config: ControlPlaneConfig) -> GenerationAsk:
    """The ask of a chat; raises InvalidField for what is not supported."""
    for field, value in (("tools", body.tools), ("functions", body.functions)):
        if value:
            raise InvalidField(field, "is not supported: models here call no tools")
    if body.audio or (body.modalities and body.modalities != ["text"]):
        raise InvalidField("modalities", 'only "text" is supported')
    _refuse_format(body.response_format)
    if body.top_logprobs is not None and not body.logprobs:
        raise InvalidField("top_logprobs", "needs logprobs to be true")
    given = {body.max_tokens, body.max_completion_tokens} - {None}
    if len(given) > 1:
        raise InvalidField(
            "max_completion_tokens",
            f"is {body.max_completion_tokens}, but max_tokens is {body.max_tokens}; they mean "
            "the same",
        )
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    most = body.max_completion_tokens or body.max_tokens or 0
    return _ask(call, body, chat_prompt(body.messages, body), most, logprobs, config)


def completion_asks(
    call: Call, body: CompletionBody, config: ControlPlaneConfig
) -> list[GenerationAsk]:
    """One ask for each prompt; raises InvalidField for what is not supported."""
    if body.echo:
        raise InvalidField("echo", "is not supported: an answer never repeats its prompt")
    if body.suffix:
        raise InvalidField("suffix", "is not supported: models here only go on with a text")
    n = body.n or 1
    if body.best_of is not None and body.best_of != n:
        raise InvalidField("best_of", f"is {body.best_of}; supported: as many as n, {n}")
    contents = content_list("prompt", body.prompt, MOST_PROMPTS)
    most = body.max_tokens or _USUAL_COMPLETION
    prompts: Sequence[Prompt] = [
        TextPrompt(each) if isinstance(each, str) else TokenPrompt(each) for each in contents
    ]
    return [_ask(call, body, prompt, most, body.logprobs, config) for prompt in prompts]


def _ask(
    call: Call,
    body: GenerationBody,
    prompt: Prompt,
    max_tokens: int,
    logprobs: int | None,
    config: ControlPlaneConfig,
) -> GenerationAsk:
    refuse_foreign(body)
    if body.stream_options is not None and not body.stream:
        raise InvalidField("stream_options", "needs stream to be true")
    klass = class_asked(call, body)
    usual_ms = config.generation_times(klass.name).deadline_ms
    return GenerationAsk(
        model=body.model,
        prompt=prompt,
        sampling=_sampling(body),
        limits=GenerationLimits(
            max_tokens=max_tokens,
            stop=() if body.stop is None else text_list("stop", body.stop),
            stop_token_ids=body.stop_token_ids or (),
            n=body.n or 1,
            logprobs=logprobs,
            ignore_end=bool(body.ignore_eos),
        ),
        klass=klass,
        # The patience of a client that reads a stream is for each piece, not for the whole.
        deadline_ns=deadline_of(call, body, 0 if body.stream else usual_ms),
        first_token_target_ns=_target_ns(body.first_token_target_ms),
        token_target_ns=_target_ns(body.token_target_ms),
    )


def _target_ns(milliseconds: float | None) -> int:
    # What is asked for is never none, however little it is.
    return max(1, int(milliseconds * _MS)) if milliseconds else 0


def _sampling(body: GenerationBody) -> Sampling:
    """OpenAI's defaults: without a temperature the model's own probabilities are drawn from."""
    top_k = body.top_k or 0
    return Sampling(
        temperature=1.0 if body.temperature is None else body.temperature,
        top_k=0 if top_k < 0 else top_k,
        top_p=body.top_p or 1.0,
        min_p=body.min_p or 0.0,
        repetition_penalty=body.repetition_penalty or 1.0,
        seed=None if body.seed is None else body.seed % _SEEDS,
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        logit_bias=_biases(body.logit_bias or {}),
    )


def _biases(asked: Mapping[str, object]) -> dict[int, float]:
    """`logit_bias`: numbers by token id, which in JSON are the names of fields."""
    biases = {}
    for key, value in asked.items():
        if not (key.isascii() and key.isdecimal() and len(key) <= _TOKEN_DIGITS):
            raise InvalidField("logit_bias", "must have token ids as its names")
        if (
            not isinstance(value, int | float)
            or isinstance(value, bool)
            or not -MOST_BIAS <= value <= MOST_BIAS
        ):
            raise InvalidField(
                "logit_bias",
                f"of token {key} must be a number of {-MOST_BIAS:g} to {MOST_BIAS:g}, "
                f"got {kind_of(value)}",
            )
        biases[int(key)] = float(value)
    return biases


def _refuse_format(value: object) -> None:
    if value is None:
        return
    kind = value.get("type") if isinstance(value, dict) else None
    if kind != "text":
        came = shown(kind) if isinstance(kind, str) else kind_of(value)
        raise InvalidField("response_format", f'only type "text" is supported, got {came}')


def chat_prompt(turns: Sequence[ChatTurn], body: ChatBody | TokenizeBody) -> ChatPrompt:
    """A chat as a prompt; raises InvalidField for what is no text of a known role."""
    continues = bool(body.continue_final_message)
    if body.add_generation_prompt is False and not continues:
        raise InvalidField(
            "add_generation_prompt",
            "must be true unless continue_final_message is: who answers is the assistant",
        )
    return ChatPrompt([_message(index, turn) for index, turn in enumerate(turns)], continues)


def _message(index: int, turn: ChatTurn) -> Message:
    place = f"messages.{index}"
    role = _ROLES.get(turn.role)
    if role is None:
        raise InvalidField(
            f"{place}.role", f"is {shown(turn.role)}; accepted: {', '.join(sorted(_ROLES))}"
        )
    if turn.tool_calls or turn.function_call:
        raise InvalidField(f"{place}.tool_calls", "is not supported: models here call no tools")
    return Message(role, _content(f"{place}.content", turn.content))


def _content(field: str, value: object) -> str:
    """The text of a turn; parts are joined by line breaks."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise InvalidField(field, f"must be a string or an array of parts, got {kind_of(value)}")
    return "\n".join([_part(f"{field}.{index}", part) for index, part in enumerate(value)])


def _part(field: str, part: object) -> str:
    if not isinstance(part, dict):
        raise InvalidField(field, f"must be an object, got {kind_of(part)}")
    kind, text = part.get("type"), part.get("text")
    if kind != "text":
        came = shown(kind) if isinstance(kind, str) else kind_of(kind)
        raise InvalidField(f"{field}.type", f'only "text" is supported, got {came}')
    if not isinstance(text, str):
        raise InvalidField(f"{field}.text", f"must be a string, got {kind_of(text)}")
    return text
