"""Bodies of requests as frozen records: what is read, how it is checked, what is refused.

Fields that are not listed are accepted and change nothing, as OpenAI's clients expect; those of
other servers that would change an answer are listed to be refused (`foreign.py`).
Messages name the field, what was expected and the kind of what came, never a text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from controlplane.errors import InvalidRequest
from controlplane.generation.checks import LARGEST_TARGET_MS, MOST_PENALTY
from controlplane.http.problems import InvalidField
from controlplane.rpc.asks import LIMITS

T = TypeVar("T")

_Finite = Field(allow_inf_nan=False)
Number = Annotated[float, _Finite]
Name = Annotated[str, Field(max_length=64)]
Milliseconds = Annotated[float, _Finite]
Target = Annotated[float, _Finite, Field(ge=0, le=LARGEST_TARGET_MS)]
Penalty = Annotated[float, _Finite, Field(ge=-MOST_PENALTY, le=MOST_PENALTY)]
Count = Annotated[int, Field(ge=0, le=2**31 - 1)]

MOST_MESSAGES = 4096
MOST_CHOICES = 128
MOST_STOPS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Demands:
    """What any request may ask beside its content; the extension fields of every body."""

    user: str | None = None
    tenant: Name | None = None
    request_class: Name | None = None
    privacy_class: Name | None = None
    minimum_quality: Number | None = None
    variant: str | None = None
    prohibited_variants: tuple[str, ...] | None = None
    deadline_ms: Milliseconds | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingsBody(Demands):
    """POST /v1/embeddings."""

    model: str
    input: Any
    encoding_format: str | None = None
    dimensions: Annotated[int, Field(ge=1)] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """`stream_options` of a streamed generation."""

    include_usage: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignFields(Demands):
    """What other servers take and `foreign.py` refuses."""

    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    structured_outputs: Any = None
    json_schema: Any = None
    grammar: Any = None
    min_tokens: Any = None
    bad_words: Any = None
    n_predict: Any = None
    max_new_tokens: Any = None
    repeat_penalty: Any = None
    typical_p: Any = None
    mirostat: Any = None
    xtc_probability: Any = None
    dry_multiplier: Any = None
    use_beam_search: Any = None
    prompt_logprobs: Any = None
    include_stop_str_in_output: Any = None
    skip_special_tokens: Any = None
    truncate_prompt_tokens: Any = None
    chat_template: Any = None
    chat_template_kwargs: Any = None
    web_search_options: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationBody(ForeignFields):
    """What both kinds of generation share."""

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    n: Annotated[int, Field(ge=1, le=MOST_CHOICES)] | None = None
    stop: Any = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**64)] | None = None
    temperature: Annotated[float, _Finite, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, _Finite, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=2**31 - 1)] | None = None
    min_p: Annotated[float, _Finite, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, _Finite, Field(gt=0)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: dict[str, Any] | None = None
    stop_token_ids: tuple[Count, ...] | None = None
    ignore_eos: bool | None = None
    first_token_target_ms: Target | None = None
    token_target_ms: Target | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionBody(GenerationBody):
    """POST /v1/completions."""

    prompt: Any
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    best_of: Annotated[int, Field(ge=1)] | None = None
    echo: bool | None = None
    suffix: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatTurn:
    """One of `messages`; parts other than text are refused when it is read."""

    role: str
    content: Any = None
    tool_calls: Any = None
    function_call: Any = None
    refusal: str | None = None


Turns = Annotated[tuple[ChatTurn, ...], Field(min_length=1, max_length=MOST_MESSAGES)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatBody(GenerationBody):
    """POST /v1/chat/completions."""

    messages: Turns
    max_completion_tokens: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    tools: Any = None
    functions: Any = None
    response_format: Any = None
    modalities: Any = None
    audio: Any = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizeBody(Demands):
    """POST /tokenize."""

    model: str
    prompt: str | None = None
    messages: Turns | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    return_token_strs: bool | None = None


class Reader:
    """Reads one kind of body."""

    def __init__(self, cls: type[T]) -> None:
        self._adapter: TypeAdapter[Any] = TypeAdapter(cls)

    def read(self, raw: bytes) -> Any:
        """The record; raises InvalidRequest for what is no JSON object, InvalidField else."""
        try:
            return self._adapter.validate_json(raw, strict=True)
        except ValidationError as error:
            raise _explained(error) from None


def _explained(error: ValidationError) -> InvalidRequest:
    fault = error.errors(include_url=False)[0]
    field = ".".join(str(part) for part in fault["loc"] if not _is_alternative(part))
    if fault["type"] == "json_invalid":
        return InvalidRequest(f"the body is no valid JSON: {fault['msg'].partition(': ')[2]}")
    if not field:
        return InvalidRequest(f"the body must be a JSON object, got {kind_of(fault['input'])}")
    if fault["type"] == "missing":
        return InvalidField(field, "is required")
    if fault["type"] in ("too_short", "too_long"):
        bounds = fault["ctx"]
        least = fault["type"] == "too_short"
        bound = f"at least {bounds['min_length']}" if least else f"at most {bounds['max_length']}"
        return InvalidField(field, f"must have {bound}, has {bounds['actual_length']}")
    reason = fault["msg"].replace("Input should be", "must be")
    return InvalidField(field, f"{reason}, got {kind_of(fault['input'])}")


def _is_alternative(part: int | str) -> bool:
    """Whether a step of an error's place names a branch of a type, not a field."""
    return isinstance(part, str) and not part.replace("_", "").isalnum()


def kind_of(value: object) -> str:
    """What came, as an error may say it: numbers and truth values whole, others by kind."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value) if isinstance(value, float) else _digits(value)
    if isinstance(value, str):
        return "a string"
    return "an array" if isinstance(value, list | tuple) else "an object"


def _digits(value: int) -> str:
    return str(value) if abs(value) < 10**20 else "an integer of more than 20 digits"


def text_list(field: str, value: object, most: int = MOST_STOPS) -> tuple[str, ...]:
    """A string, or an array of at most so many strings, as strings; InvalidField otherwise."""
    if isinstance(value, str):
        return (value,)
    if isinstance(value, list):
        _bounded(field, len(value), most, "strings")
        for index, each in enumerate(value):
            if not isinstance(each, str):
                raise InvalidField(f"{field}.{index}", f"must be a string, got {kind_of(each)}")
        return tuple(value)
    raise InvalidField(field, f"must be a string or an array of strings, got {kind_of(value)}")


def token_list(field: str, value: Sequence[object]) -> tuple[int, ...]:
    """Token ids of one sequence; InvalidField when one is no integer of 0 to 2^31 - 1."""
    _bounded(field, len(value), LIMITS.tokens, "token ids")
    for index, each in enumerate(value):
        if type(each) is not int or not 0 <= each < 2**31:
            raise InvalidField(
                f"{field}.{index}", f"must be a token id from 0 to {2**31 - 1}, got {kind_of(each)}"
            )
    return tuple(value)  # type: ignore[arg-type]


def content_list(
    field: str, value: object, most: int
) -> tuple[str, ...] | tuple[tuple[int, ...], ...]:
    """At most so many texts or token sequences, in the four forms of `prompt` and `input`."""
    if isinstance(value, list) and value:
        if isinstance(value[0], list):
            _bounded(field, len(value), most, "arrays of token ids")
            for index, row in enumerate(value):
                if not isinstance(row, list):
                    raise InvalidField(
                        f"{field}.{index}", f"must be an array of token ids, got {kind_of(row)}"
                    )
            _bounded(field, sum(map(len, value)), LIMITS.tokens, "token ids")
            return tuple([token_list(f"{field}.{i}", row) for i, row in enumerate(value)])
        if not isinstance(value[0], str):
            return (token_list(field, value),)
    elif not isinstance(value, str):
        came = "an empty array" if isinstance(value, list) else kind_of(value)
        raise InvalidField(
            field,
            "must be a string, an array of strings, an array of token ids, or an array of "
            f"arrays of token ids, got {came}",
        )
    return text_list(field, value, most)


def _bounded(field: str, count: int, most: int, what: str) -> None:
    """InvalidField before anybody looks at more than a request may hold."""
    if count > most:
        raise InvalidField(field, f"holds {count} {what}; at most {most}")
