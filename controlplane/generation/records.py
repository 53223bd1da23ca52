"""What a generation asks for and what comes back, free of any transport.

No record of these is ever logged: prompts, texts and tokens are the caller's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, TypeAlias

from controlplane.policy.records import Provenance, RequestClass


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """Text to go on with, as it is."""

    text: str


class Message(NamedTuple):
    """One turn of a chat; `role` is "system", "user" or "assistant"."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A conversation, rendered with the model's chat template; the answer is the next turn.

    With `continues` the answer goes on with the last one, which is the assistant's.
    """

    messages: Sequence[Message]
    continues: bool = False


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """Token ids of the model's tokenizer; nothing is put before them."""

    ids: Sequence[int]


Prompt: TypeAlias = TextPrompt | ChatPrompt | TokenPrompt


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is chosen; see `orchid.v1.Sampling`. As it is, greedy."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 0.0
    min_p: float = 0.0
    repetition_penalty: float = 0.0
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GenerationLimits:
    """When an answer ends and what is told of it; see `orchid.v1.GenerationLimits`.

    `max_tokens` 0 takes what the context leaves. `logprobs`, when set, is the number of
    alternatives that every token carries beside its own log probability.
    """

    max_tokens: int = 0
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    n: int = 1
    logprobs: int | None = None
    ignore_end: bool = False


@dataclass(frozen=True, slots=True)
class GenerationAsk:
    """One generation as a front door hands it in; `Generations.open` checks every field.

    `deadline_ns` is the explicit time the whole answer is worth waiting for, and the
    targets those that admission keeps; 0 takes what the request's class has.
    """

    model: str
    prompt: Prompt
    sampling: Sampling = field(default_factory=Sampling)
    limits: GenerationLimits = field(default_factory=GenerationLimits)
    klass: RequestClass = field(default_factory=RequestClass)
    deadline_ns: int = 0
    first_token_target_ns: int = 0
    token_target_ns: int = 0


class Caller(NamedTuple):
    """What a transport knows of a call: seconds until its own deadline, and its trace context.

    `whole` callers see nothing of an answer before its end, so that another worker may begin anew.
    """

    remaining_s: float | None = None
    traceparent: str = ""
    whole: bool = False


class PromptTokens(NamedTuple):
    """What a prompt comes to, and how many tokens its model's context has."""

    ids: tuple[int, ...]
    context: int


class FinishReason(Enum):
    """Why an answer ended."""

    STOP = "stop"
    LENGTH = "length"
    DEADLINE = "deadline"


class TokenLogprob(NamedTuple):
    """A token, its bytes (a part of a character, perhaps), and its natural log probability."""

    token_id: int
    token: bytes
    logprob: float


class GeneratedToken(NamedTuple):
    """The token that was taken and the most likely ones beside it."""

    chosen: TokenLogprob
    alternatives: tuple[TokenLogprob, ...]


class Admitted(NamedTuple):
    """The generation holds a place on a worker.

    Comes again when another worker took over, and makes void what was told before.
    """

    prompt_tokens: int
    cached_tokens: int
    queue_ns: int
    provenance: Provenance


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of answer `index`; its text is whole characters and may be empty."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[GeneratedToken, ...] = ()


@dataclass(frozen=True, slots=True)
class Finished:
    """Answer `index` ended; `stop` is the stop string that ended it, if one did."""

    index: int
    reason: FinishReason
    stop: str
    generated_tokens: int


class GenerationUsage(NamedTuple):
    """The resource-and-outcome record of a generation; see `orchid.v1.GenerationUsage`.

    Times are in ns and the worker's, `live_token_ms` is tokens times milliseconds held.
    """

    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    queue_ns: int
    first_token_ns: int
    total_ns: int
    mean_gap_ns: int
    max_gap_ns: int
    prefill_cpu_ns: int
    decode_cpu_ns: int
    live_token_ms: int
    preemptions: int


class Completed(NamedTuple):
    """The last event of a generation that ended well."""

    usage: GenerationUsage
    provenance: Provenance


GenerationEvent: TypeAlias = Admitted | Delta | Finished | Completed
