"""What one message asks for, in domain values, with the checks both front doors share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from controlplane.errors import InvalidRequest, TooLate
from controlplane.policy.records import (
    RequestClass,
    Shape,
    TensorPayload,
    TensorValue,
    TokenPayload,
)
from controlplane.registry import TensorSpec
from controlplane.rpc.catalogue import ModelView
from controlplane.rpc.status import listed, shown

MAX_NAME = 64
_MOST_CLASSES = 1024
MAX_DEADLINE_MS = 24 * 3600 * 1000


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one request, whatever its message size.

    `items` counts sequences, `tokens` the ids of all of them, `text_bytes` the UTF-8
    bytes of all texts, `rank` the dimensions of a tensor, `strings` the elements of a
    string tensor, `typed_elements` those of a tensor in typed contents, which decode
    slowly; `names` bounds parameters, inputs, outputs and prohibited variants.
    """

    items: int = 1024
    tokens: int = 1 << 19
    text_bytes: int = 4 << 20
    rank: int = 8
    strings: int = 1 << 16
    typed_elements: int = 1 << 20
    names: int = 64


LIMITS = Limits()


class Ask(NamedTuple):
    """A checked request before admission: either `texts`, or a `payload` with its `shapes`.

    Made once a request, hence a tuple: half the cost of a frozen dataclass.

    `deadline_ns` is the explicit time the answer is worth waiting for, 0 without one.
    `highest_id` is the highest token id that the caller sent, -1 for other input.
    """

    view: ModelView
    klass: RequestClass
    deadline_ns: int
    texts: Sequence[str] = ()
    payload: TokenPayload | TensorPayload | None = None
    shapes: Mapping[str, Shape] | None = None
    highest_id: int = -1


class TokenRows(NamedTuple):
    """Token ids of several sequences: little-endian int32 end to end, none negative."""

    ids: bytes
    lengths: tuple[int, ...]
    highest: int


NO_CLASS = RequestClass()


def request_class(
    view: ModelView,
    *,
    tenant: str = "",
    name: str = "",
    privacy_class: str = "",
    minimum_quality: float = 0.0,
    prohibited: tuple[str, ...] = (),
    variant: str = "",
    approximation: bool = True,
) -> RequestClass:
    """The caller's requirements, checked; callers that require the same share one.

    Raises InvalidRequest for a quality outside 0 to 1 or a name that is too long,
    NotFound for a variant that the model does not have.
    """
    key = (tenant, name, privacy_class, minimum_quality, prohibited, variant, approximation)
    known = view.classes.get(key)
    if known is None:
        known = _checked_class(view, *key)
        if len(view.classes) >= _MOST_CLASSES:
            view.classes.clear()
        view.classes[key] = known
    return known


def _checked_class(
    view: ModelView,
    tenant: str,
    name: str,
    privacy_class: str,
    minimum_quality: float,
    prohibited: tuple[str, ...],
    variant: str,
    approximation: bool,
) -> RequestClass:
    for field, value in (
        ("tenant", tenant),
        ("request_class", name),
        ("privacy_class", privacy_class),
    ):
        if len(value) > MAX_NAME:
            raise InvalidRequest(f"{field} has {len(value)} characters; at most {MAX_NAME}")
    if not (math.isfinite(minimum_quality) and 0.0 <= minimum_quality <= 1.0):
        raise InvalidRequest(f"minimum_quality is {minimum_quality}; accepted: 0 to 1")
    if variant:
        view.require_variant(variant)
    banned = frozenset(prohibited)
    if len(banned) > LIMITS.names:
        raise InvalidRequest(f"{len(banned)} prohibited variants; at most {LIMITS.names}")
    for each in banned:
        view.require_variant(each)
    return RequestClass(
        tenant,
        name,
        privacy_class,
        minimum_quality,
        banned,
        variant,
        approximation=approximation,
    )


def explicit_deadline(value: float, *, unit_ns: int, field: str) -> int:
    """An explicit deadline in ns; 0 stays 0 and means the caller left it to us.

    Raises TooLate when it has passed already, InvalidRequest beyond a day.
    """
    if value < 0:
        raise TooLate(f"{field} is {value:g}: the deadline had passed when the request came")
    if not value * unit_ns <= MAX_DEADLINE_MS * 1_000_000:
        raise InvalidRequest(
            f"{field} is {value:g}; accepted: up to {MAX_DEADLINE_MS * 1_000_000 // unit_ns}"
        )
    # What is asked for is never none, however little it is.
    return max(1, int(value * unit_ns)) if value else 0


def check_texts(texts: Sequence[bytes] | Sequence[str], limits: Limits = LIMITS) -> None:
    """InvalidRequest when there is no text, or more than one request may hold."""
    if not texts:
        raise InvalidRequest("the request holds no text; at least one is needed")
    if len(texts) > limits.items:
        raise InvalidRequest(f"{len(texts)} texts in one request; at most {limits.items}")
    size = sum(map(len, texts))
    if size > limits.text_bytes:
        raise InvalidRequest(f"{size} bytes of text in one request; at most {limits.text_bytes}")


def check_lengths(lengths: Sequence[int], view: ModelView, tokenizer: str) -> None:
    """InvalidRequest when sequences are empty, too many, or longer than any variant takes."""
    count = len(lengths)
    if not 0 < count <= LIMITS.items:
        raise InvalidRequest(f"{count} sequences in one request; accepted: 1 to {LIMITS.items}")
    if not all(lengths):
        raise InvalidRequest(f"sequence {lengths.index(0)} has no token")
    longest, bound = max(lengths), view.tokenizers[tokenizer]
    if bound and longest > bound:
        raise InvalidRequest(
            f"a sequence has {longest} tokens; model {shown(view.info.name)} takes at most "
            f"{bound} with tokenizer {shown(tokenizer)}"
        )
    if longest * count > LIMITS.tokens and sum(lengths) > LIMITS.tokens:
        raise InvalidRequest(f"{sum(lengths)} tokens in one request; at most {LIMITS.tokens}")


def token_ask(
    view: ModelView,
    klass: RequestClass,
    deadline_ns: int,
    *,
    tokenizer: str,
    rows: TokenRows,
) -> Ask:
    """An ask of token ids; InvalidRequest when the model takes no sequences like these."""
    lengths = rows.lengths
    check_lengths(lengths, view, tokenizer)
    if len(lengths) == 1:
        length = lengths[0]
        shape = Shape(1, length, length * length, length)
    else:
        shape = Shape.of_lengths(lengths)
    return Ask(
        view,
        klass,
        deadline_ns,
        payload=TokenPayload({tokenizer: rows.ids}, {tokenizer: lengths}),
        shapes={tokenizer: shape},
        highest_id=rows.highest,
    )


def tensor_ask(
    view: ModelView, klass: RequestClass, deadline_ns: int, tensors: tuple[TensorValue, ...]
) -> Ask:
    """An ask of named tensors, checked against the inputs that the model declares."""
    given = {tensor.name: tensor for tensor in tensors}
    if len(given) != len(tensors):
        raise InvalidRequest(f"an input is given twice; inputs: {listed(view.inputs)}")
    for name in given:
        if name not in view.inputs:
            raise InvalidRequest(
                f"model {shown(view.info.name)} has no input {shown(name)}; "
                f"inputs: {listed(view.inputs)}"
            )
    for name, spec in view.inputs.items():
        if name not in given:
            raise InvalidRequest(f"input {shown(name)} is missing; inputs: {listed(view.inputs)}")
        check_tensor(given[name], spec)
    # What a run of tensors costs grows with their elements, which profiles count as tokens.
    elements = sum(math.prod(tensor.shape) for tensor in tensors)
    shape = Shape(items=1, tokens=elements, squared_tokens=0)
    return Ask(view, klass, deadline_ns, payload=TensorPayload(tensors), shapes={"": shape})


def check_tensor(tensor: TensorValue, spec: TensorSpec) -> None:
    """InvalidRequest when a tensor's type or shape is not what its input declares."""
    if tensor.dtype != spec.dtype:
        raise InvalidRequest(
            f"input {shown(tensor.name)} is {tensor.dtype}; accepted: {spec.dtype}"
        )
    fits = len(tensor.shape) == len(spec.shape) and all(
        given == wanted or wanted < 0
        for given, wanted in zip(tensor.shape, spec.shape, strict=True)
    )
    if not fits:
        raise InvalidRequest(
            f"input {shown(tensor.name)} has shape {list(tensor.shape)}; "
            f"accepted: {list(spec.shape)} (-1 is any size)"
        )


def checked_shape(name: str, dimensions: Sequence[int]) -> tuple[tuple[int, ...], int]:
    """A tensor's shape and its number of elements; InvalidRequest when it is not usable."""
    if len(dimensions) > LIMITS.rank:
        raise InvalidRequest(
            f"tensor {shown(name)} has {len(dimensions)} dimensions; at most {LIMITS.rank}"
        )
    shape = tuple(dimensions)
    count = 1
    for dimension in shape:
        if dimension < 1:
            raise InvalidRequest(
                f"tensor {shown(name)} has shape {list(shape)}; every dimension is at least 1"
            )
        count *= dimension
    return shape, count
