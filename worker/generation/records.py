"""Values of generations: what is asked, and the events that answer it.

All times are integers of one monotonic clock, in nanoseconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from worker.errors import WorkerError
from worker.generation.sampling import SamplingParameters
from worker.scheduling.measures import SequenceMeasures
from worker.scheduling.records import DecodeState

# Bounds of what one generation may ask.
MOST_ANSWERS = 16
MOST_STOPS = 16
MOST_STOP_CHARACTERS = 256
MOST_STOP_TOKENS = 64
MOST_ALTERNATIVES = 20


@dataclass(frozen=True, slots=True)
class Limits:
    """When answers end and what is told of them.

    `max_tokens` 0 takes what the context leaves. `logprobs` None tells none, else so many
    alternatives beside each token's. `ignore_end` lets the model's end tokens not end an answer.
    """

    max_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_tokens: tuple[int, ...] = ()
    answers: int = 1
    logprobs: int | None = None
    ignore_end: bool = False


@dataclass(frozen=True, slots=True)
class GenerationCall:
    """One generation as it arrived. `deadline_ns` None has no end; targets of 0 are none.

    A target of the first token that grows is one that nobody named.
    """

    generation_id: int
    model: str
    variant: str
    prompt: tuple[int, ...]
    arrived_ns: int
    sampling: SamplingParameters = field(default_factory=SamplingParameters)
    limits: Limits = field(default_factory=Limits)
    tenant: str = ""
    deadline_ns: int | None = None
    first_token_target_ns: int = 0
    token_target_ns: int = 0
    traceparent: str = ""
    account: str = ""
    account_weight: float = 1.0
    work_price: float = 1.0
    account_room: float = 1.0
    first_token_target_grows: bool = False


class Finish(Enum):
    """Why an answer ended."""

    STOP = "stop"
    LENGTH = "length"
    DEADLINE = "deadline"


@dataclass(frozen=True, slots=True)
class TokenScore:
    """A token, its bytes, and the natural logarithm of its probability."""

    token: int
    content: bytes
    logprob: float


@dataclass(frozen=True, slots=True)
class ScoredToken:
    """A token of an answer and the most likely ones in its place."""

    chosen: TokenScore
    alternatives: tuple[TokenScore, ...]


@dataclass(frozen=True, slots=True)
class Admitted:
    """The generation holds a place and its first token is being made."""

    prompt_tokens: int
    cached_tokens: int
    queue_ns: int


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of answer `index`; `scores` has one entry a token, or none."""

    index: int
    text: str
    tokens: tuple[int, ...]
    scores: tuple[ScoredToken, ...] = ()


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of answer `index`; `stop` is the stop string that ended it, if one did.

    `generated_tokens` counts every token that was made for it, the one that ended it too.
    """

    index: int
    reason: Finish
    stop: str
    generated_tokens: int


@dataclass(frozen=True, slots=True)
class Usage:
    """What a generation took; CPU times are its shares of the steps it was in."""

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
    live_token_ns: int
    preemptions: int


@dataclass(frozen=True, slots=True)
class Failed:
    """The generation ended without an answer, or in the middle of one."""

    error: WorkerError


GenerationEvent: TypeAlias = Admitted | Delta | Finished | Usage | Failed


@dataclass(frozen=True, slots=True)
class LaneLoad:
    """What the lane of one variant holds and has measured; `block_map` is as in `DecodeLoad`."""

    model: str
    variant: str
    state: DecodeState
    measures: SequenceMeasures
    block_map: bytes = b""
