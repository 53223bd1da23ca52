"""Domain values of the encoder lane: what a request is, asks for, costs and got.

Nothing here holds text or tensor content that a policy could read; a request's
payload is opaque. All times are integers of one monotonic clock, in nanoseconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple


class Shape(NamedTuple):
    """Size of one request's input for one tokenizer.

    `items` counts sequences, `tokens` their tokens, `squared_tokens` the sum of
    squared lengths, which is what attention costs; `longest_tokens` is the longest
    sequence, 0 where sequences have no length (tensor input).
    """

    items: int
    tokens: int
    squared_tokens: int
    longest_tokens: int = 0

    @staticmethod
    def of_lengths(lengths: Sequence[int]) -> Shape:
        """Shape of sequences that have these lengths in tokens."""
        return Shape(
            items=len(lengths),
            tokens=sum(lengths),
            squared_tokens=sum(length * length for length in lengths),
            longest_tokens=max(lengths, default=0),
        )


@dataclass(frozen=True, slots=True)
class RequestClass:
    """Who asks and what the answer must satisfy.

    `minimum_quality` is the lowest measured quality (0 to 1) of a variant that may
    answer; `variant`, when not empty, pins the answer to that variant. What is `deferrable` is
    kept out first under overload. Without `approximation` only the most accurate variant of those
    that may answer does. `population` names what requests are like, and so whose evidence holds
    for their cascades; empty is the one that the model was measured on first.
    """

    tenant: str = ""
    name: str = ""
    privacy_class: str = ""
    minimum_quality: float = 0.0
    prohibited: frozenset[str] = frozenset()
    variant: str = ""
    deferrable: bool = False
    approximation: bool = True
    population: str = ""


@dataclass(slots=True, eq=False)
class Request:
    """One admitted request; mutable only by the dispatcher that owns it.

    `shapes` is keyed by tokenizer name ("" for tensor input). A request may be
    dispatched more than once (a lost worker, a cascade); `dispatches` counts that.
    `tightness` is the share of its time that the door foretold it to need. It shares runs
    only with requests of the same `cell`. `offered_ns` is when it came to the door, 0 before,
    `ahead` how many waited then, `admission` what the door said, `foretold_ns` the service that
    was predicted then for its fastest variant. `price` is its cohort's: its predictions are
    multiplied by that. `cascade` holds the cascades it may take, None for none, `stage` why it
    runs when that is not to get its first answer (`selector.Stage`).
    `trace` is what records it, None for most, `traceparent` what its worker is told of that.
    """

    id: int
    model: str
    klass: RequestClass
    shapes: Mapping[str, Shape]
    payload: Any
    arrived_ns: int
    deadline_ns: int
    traceparent: str = ""
    preprocess_ns: int = 0
    eligible: tuple[int, ...] = ()
    tightness: float = 0.0
    cell: str = ""
    dispatches: int = 0
    dispatched_ns: int = 0
    offered_ns: int = 0
    ahead: int = 0
    admission: Any = None
    cascade: Any = None
    stage: Any = None
    trace: Any = None
    price: float = 1.0
    foretold_ns: int = 0

    @property
    def budget_ns(self) -> int:
        """The time that the request had when it arrived."""
        return self.deadline_ns - self.arrived_ns


class TensorValue(NamedTuple):
    """A dense tensor crossing the control plane untouched.

    `dtype` is a numpy name ("float32", "int64", ...) or "string"; `data` holds
    little-endian elements, `strings` the elements of a string tensor.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: bytes = b""
    strings: tuple[bytes, ...] = ()


class TokenPayload(NamedTuple):
    """Token ids per tokenizer: little-endian int32 ids end to end, and row lengths."""

    ids: Mapping[str, bytes]
    lengths: Mapping[str, tuple[int, ...]]


class TensorPayload(NamedTuple):
    """Named input tensors of a model that takes tensors as they are."""

    tensors: tuple[TensorValue, ...]


def carried_bytes(payload: object) -> int:
    """Bytes of the tensors in a payload; token ids are too few to count."""
    if not isinstance(payload, TensorPayload):
        return 0
    return sum(len(t.data) + sum(map(len, t.strings)) for t in payload.tensors)


class DecisionKind(Enum):
    """What to do with the head of the queue when a worker frees."""

    RUN = "run"
    DROP = "drop"


class Decision(NamedTuple):
    """A variant choice with the numbers it rests on, in nanoseconds.

    `variant` indexes the pool's variant table; -1 for a drop. `batch` counts the
    requests from the head of the queue that run together, `chance` is that of the head to
    be on time, as far as it is known.
    """

    kind: DecisionKind
    variant: int
    reason: str
    slack_ns: int
    predicted_ns: float
    work_ahead_ns: float
    approximation: bool
    batch: int = 1
    chance: float = 0.0


class Stages(NamedTuple):
    """How an answer of a cascade came about.

    `first_variant` answered first, with this calibrated `confidence`; `escalated` says that
    another variant was asked then, `runs` how many gave an answer. `expected_quality` is the
    chance that the answer is right, by the evidence for this confidence.
    """

    first_variant: str
    confidence: float
    escalated: bool
    runs: int
    expected_quality: float


class Provenance(NamedTuple):
    """Which deployment answered, and why that one.

    `overload_level` is the rung of the overload ladder that the decision was taken on, `stages`
    what an answer says that a cascade gave, None for others.
    """

    model: str
    model_version: str
    variant: str
    manifest_digest: str
    reason: str
    approximation: bool
    quality: float
    worker_id: str
    overload_level: int = 0
    stages: Stages | None = None


class Outcome(NamedTuple):
    """The closed resource-and-outcome record of an answered request; times in ns."""

    items: int
    input_tokens: int
    predicted_cpu_ns: int
    charged_cpu_ns: int
    preprocess_ns: int
    queue_ns: int
    execute_ns: int
    total_ns: int
    slack_at_dispatch_ns: int
    slack_at_answer_ns: int
    batch_size: int
    dispatches: int


class Answer(NamedTuple):
    """What the caller gets: output tensors, where they came from and what they cost."""

    outputs: tuple[TensorValue, ...]
    provenance: Provenance
    outcome: Outcome
    labels: tuple[str, ...] = ()
