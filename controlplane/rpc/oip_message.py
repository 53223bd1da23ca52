"""Requests of the Open Inference Protocol as they come, with what many of them share read once.

A client's requests differ in id and contents; model, parameters, names, types and shapes are the
same bytes again and again. So a message is cut at its top-level fields, and the bytes that are
neither id nor raw contents, its head, are looked up among those that were read before. Heads
that were not are read by protobuf; what cannot be cut is read by protobuf as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from controlplane.policy.records import RequestClass, Shape
from controlplane.rpc.catalogue import ModelView
from protos.codec import Undecodable
from protos.inference.oip_pb2 import ModelInferRequest

# Longer heads hold typed contents; and whoever varies his heads shall not fill the memory.
_LONGEST_HEAD: Final = 1024
_MOST_HEADS: Final = 2048

# Tags of length-delimited fields: the first, the two that stand apart, the last.
_FIRST_TAG: Final = ModelInferRequest.MODEL_NAME_FIELD_NUMBER << 3 | 2
_ID_TAG: Final = ModelInferRequest.ID_FIELD_NUMBER << 3 | 2
_RAW_TAG: Final = ModelInferRequest.RAW_INPUT_CONTENTS_FIELD_NUMBER << 3 | 2
# Lengths below 2^35 take at most so many bytes.
_LONGEST_LENGTH: Final = 5


@dataclass(frozen=True, slots=True)
class Wanted:
    """How the answer is to be written.

    `outputs` maps each requested output to the number of classes to rank it by, 0 for
    the tensor itself; None asks for all outputs. `typed` asks for typed contents.
    """

    outputs: Mapping[str, int] | None
    typed: bool


RAW = Wanted(None, typed=False)
TYPED = Wanted(None, typed=True)


_NO_LENGTHS: Mapping[str, tuple[int, ...]] = {}


class Plan(NamedTuple):
    """What reading one request of a head has found that holds for all of them.

    The one input called `name` holds so many `texts`, or, with a `tokenizer`, `size` bytes of ids
    of type `dtype`, in sequences of these `lengths` and of this shape by tokenizer.
    """

    klass: RequestClass
    deadline_ns: int
    wanted: Wanted
    name: str
    texts: int
    tokenizer: str = ""
    dtype: str = ""
    size: int = 0
    lengths: Mapping[str, tuple[int, ...]] = _NO_LENGTHS
    shapes: Mapping[str, Shape] | None = None


class Head:
    """What requests have in common whose bytes do, but for id and raw contents.

    `plan` is how they are read for the model as `view` has it; None when they are read field
    by field. `kept` says that other requests may come with this head.
    """

    def __init__(self, message: ModelInferRequest, *, kept: bool) -> None:
        self.message = message
        self.model = message.model_name
        self.version = message.model_version
        self.kept = kept
        self.view: ModelView | None = None
        self.plan: Plan | None = None


class InferMessage:
    """One request: its head, its id, and the raw contents of its inputs in their order."""

    def __init__(self, head: Head, request_id: str, raw: Sequence[bytes]) -> None:
        self.head = head
        self.id = request_id
        self.raw = raw


def whole(message: ModelInferRequest) -> InferMessage:
    """A request that protobuf has read."""
    return InferMessage(Head(message, kept=False), message.id, message.raw_input_contents)


class MessageReader:
    """Reads the requests of ModelInfer and ModelStreamInfer; for one event loop."""

    def __init__(self) -> None:
        self._heads: dict[bytes, Head] = {}
        self._undecodable = Undecodable(ModelInferRequest.DESCRIPTOR.full_name)

    def read(self, data: bytes) -> InferMessage | Undecodable:
        """The request that these bytes are; bytes that are none become `Undecodable`."""
        parts = split(data)
        try:
            if parts is None:
                return whole(ModelInferRequest.FromString(data))
            head = self._heads.get(parts[0])
            if head is None:
                head = self._read_head(parts[0])
            return InferMessage(head, parts[1].decode("utf-8"), parts[2])
        except (DecodeError, UnicodeDecodeError):
            return self._undecodable

    def _read_head(self, data: bytes) -> Head:
        kept = len(data) <= _LONGEST_HEAD
        head = Head(ModelInferRequest.FromString(data), kept=kept)
        if kept:
            if len(self._heads) >= _MOST_HEADS:
                self._heads.clear()
            self._heads[data] = head
        return head


def split(data: bytes) -> tuple[bytes, bytes, list[bytes]] | None:
    """Head, id and raw contents of a ModelInferRequest; None when it cannot be cut.

    Protobuf takes fields in any order; raw contents add up. A message of several ids, of which the
    last one holds but all must be text, is left to it. Source: https://protobuf.dev/programming-guides/encoding/
    """
    at, end, kept = 0, len(data), 0
    request_id, identified = b"", False
    raw: list[bytes] = []
    pieces: list[bytes] = []
    while at < end:
        start = at
        tag = data[at]
        if tag & 7 != 2 or not _FIRST_TAG <= tag <= _RAW_TAG:
            return None
        size = shift = 0
        while True:
            at += 1
            if at >= end or at - start > _LONGEST_LENGTH:
                return None
            byte = data[at]
            size |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
        first = at + 1
        at = first + size
        if at > end:
            return None
        if tag in (_ID_TAG, _RAW_TAG):
            if kept < start:
                pieces.append(data[kept:start])
            kept = at
            if tag == _RAW_TAG:
                raw.append(data[first:at])
            elif identified:
                return None
            else:
                request_id, identified = data[first:at], True
    if kept < end:
        pieces.append(data[kept:end])
    return pieces[0] if len(pieces) == 1 else b"".join(pieces), request_id, raw
