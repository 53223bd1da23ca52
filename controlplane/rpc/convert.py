"""The one place where protobuf tensors, numpy arrays and domain tensors meet."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from controlplane.errors import InvalidRequest
from controlplane.policy.records import TensorValue
from controlplane.rpc.asks import LIMITS, TokenRows, checked_shape
from controlplane.rpc.status import listed, shown
from protos.inference.oip_pb2 import InferTensorContents, ModelInferRequest, ModelInferResponse
from protos.orchid.v1 import common_pb2

Array = NDArray[Any]
InputTensor = ModelInferRequest.InferInputTensor
OutputTensor = ModelInferResponse.InferOutputTensor

STRING = "string"

_HIGHEST_ID = 2**31 - 1
# What ndarray.max does, without its detour through Python.
_highest = np.maximum.reduce
_UNSIGNED: dict[str, np.dtype[Any]] = {"int32": np.dtype("<u4"), "int64": np.dtype("<u8")}


@dataclass(frozen=True, slots=True)
class ElementType:
    """One element type under its names: the protocol's, numpy's, ours on the wire.

    `contents` is the field of typed contents, empty where the protocol has none; `low`
    and `high` bound the elements where that field is wider than the type. `size` is the
    bytes of one element, 0 for strings.
    """

    oip: str
    dtype: str
    code: int
    size: int
    contents: str
    low: int = 0
    high: int = 0

    @property
    def numpy(self) -> np.dtype[Any]:
        """Little-endian numpy type of one element."""
        return np.dtype(self.dtype).newbyteorder("<")


TYPES = (
    ElementType("BOOL", "bool", common_pb2.DATA_TYPE_BOOL, 1, "bool_contents"),
    ElementType("UINT8", "uint8", common_pb2.DATA_TYPE_UINT8, 1, "uint_contents", 0, 255),
    ElementType("INT8", "int8", common_pb2.DATA_TYPE_INT8, 1, "int_contents", -128, 127),
    ElementType(
        "INT16", "int16", common_pb2.DATA_TYPE_INT16, 2, "int_contents", -(2**15), 2**15 - 1
    ),
    ElementType("INT32", "int32", common_pb2.DATA_TYPE_INT32, 4, "int_contents"),
    ElementType("INT64", "int64", common_pb2.DATA_TYPE_INT64, 8, "int64_contents"),
    ElementType("FP16", "float16", common_pb2.DATA_TYPE_FLOAT16, 2, ""),
    ElementType("FP32", "float32", common_pb2.DATA_TYPE_FLOAT32, 4, "fp32_contents"),
    ElementType("FP64", "float64", common_pb2.DATA_TYPE_FLOAT64, 8, "fp64_contents"),
    ElementType("BYTES", STRING, common_pb2.DATA_TYPE_STRING, 0, "bytes_contents"),
)
BY_OIP = {kind.oip: kind for kind in TYPES}
BY_DTYPE = {kind.dtype: kind for kind in TYPES}
BY_CODE = {kind.code: kind for kind in TYPES}
_NUMPY = {kind.oip: kind.numpy for kind in TYPES if kind.dtype != STRING}


def element_type(name: str, datatype: str) -> ElementType:
    """The protocol's `datatype` of input `name`; InvalidRequest when there is none of that name."""
    kind = BY_OIP.get(datatype)
    if kind is None:
        raise InvalidRequest(
            f"input {shown(name)} has datatype {shown(datatype)}; accepted: {listed(BY_OIP)}"
        )
    return kind


def read_oip(tensor: InputTensor, raw: bytes | None) -> TensorValue:
    """An OIP input as a domain tensor; `raw` is its raw content, None for typed contents.

    Raises InvalidRequest naming the tensor, what was sent and what is accepted.
    """
    name = tensor.name
    if raw is not None:
        return read_raw(name, tensor.datatype, tensor.shape, raw)
    kind = element_type(name, tensor.datatype)
    shape, count = checked_shape(name, tensor.shape)
    if kind.dtype == STRING:
        check_strings(name, count)
        return TensorValue(name, STRING, shape, strings=_typed_strings(tensor, count))
    return TensorValue(name, kind.dtype, shape, _typed(tensor, kind, count))


def read_raw(name: str, datatype: str, dimensions: Sequence[int], raw: bytes) -> TensorValue:
    """An input whose elements are raw contents; raises InvalidRequest like `read_oip`."""
    kind = element_type(name, datatype)
    shape, count = checked_shape(name, dimensions)
    if kind.dtype == STRING:
        check_strings(name, count)
        return TensorValue(name, STRING, shape, strings=unframe(name, raw, count))
    if len(raw) != count * kind.size:
        raise InvalidRequest(
            f"input {shown(name)} has {len(raw)} bytes; shape {list(shape)} of {kind.oip} "
            f"takes {count * kind.size}"
        )
    if kind.dtype == "bool":
        _check_bools(name, raw)
    return TensorValue(name, kind.dtype, shape, raw)


def unframe(name: str, raw: bytes, count: int) -> tuple[bytes, ...]:
    """`count` byte strings, each behind its length as a little-endian uint32."""
    elements: list[bytes] = []
    at, size = 0, len(raw)
    while at < size:
        start = at + 4
        end = start + int.from_bytes(raw[at:start], "little")
        if start > size or end > size:
            raise InvalidRequest(
                f"input {shown(name)}: the framing of element {len(elements)} runs past the "
                f"{size} bytes sent; each element is its uint32 length, then that many bytes"
            )
        elements.append(raw[start:end])
        at = end
        if len(elements) > count:
            break
    if len(elements) != count:
        more = "more than " if len(elements) > count else ""
        raise InvalidRequest(
            f"input {shown(name)} holds {more}{min(len(elements), count)} elements; "
            f"its shape takes {count}"
        )
    return tuple(elements)


def frame(strings: Sequence[bytes]) -> bytes:
    """Byte strings in the raw form of BYTES tensors."""
    return b"".join(len(each).to_bytes(4, "little") + each for each in strings)


def read_strings(tensor: TensorValue) -> tuple[str, ...]:
    """The elements of a BYTES tensor as text; InvalidRequest when one is not UTF-8."""
    texts = []
    for index, each in enumerate(tensor.strings):
        try:
            texts.append(each.decode("utf-8"))
        except UnicodeDecodeError as error:
            raise InvalidRequest(
                f"input {shown(tensor.name)}: element {index} is not UTF-8 at byte {error.start}"
            ) from None
    return tuple(texts)


def array_of(tensor: TensorValue) -> Array:
    """A numeric tensor as a read-only array over its own bytes."""
    kind = BY_DTYPE[tensor.dtype]
    return np.frombuffer(tensor.data, _NUMPY[kind.oip]).reshape(tensor.shape)


def token_rows(ids: TensorValue, mask: TensorValue | None) -> TokenRows:
    """Token ids [N, L] or [L] as rows end to end.

    Where the mask is 0 the id is padding and left out; each row's ones must stand
    together. Raises InvalidRequest naming the row.
    """
    if len(ids.shape) not in (1, 2):
        raise InvalidRequest(
            f"input {shown(ids.name)} has shape {list(ids.shape)}; accepted: [N, L] or [L]"
        )
    data, high = id_bytes(ids.name, ids.dtype, ids.data)
    width = ids.shape[-1]
    if mask is None:
        return TokenRows(data, (width,) * (len(data) // 4 // width), high)
    kept = _kept(mask, ids)
    lengths = tuple(kept.sum(axis=1).tolist())
    rows = np.frombuffer(data, "<u4").reshape(-1, width)
    return TokenRows(rows[kept].tobytes(), lengths, high)


def id_bytes(name: str, dtype: str, data: bytes) -> tuple[bytes, int]:
    """Token ids of an integer type as little-endian int32, and the highest of them.

    Raises InvalidRequest when one is negative or too high.
    """
    # Read as unsigned, a negative id is one that is far too high.
    ids = np.frombuffer(data, _UNSIGNED[dtype])
    high = int(_highest(ids))
    if high > _HIGHEST_ID:
        raise InvalidRequest(f"input {shown(name)} holds a negative id or one above {_HIGHEST_ID}")
    return data if dtype == "int32" else ids.astype("<u4").tobytes(), high


def _kept(mask: TensorValue, ids: TensorValue) -> NDArray[np.bool_]:
    if mask.shape != ids.shape:
        raise InvalidRequest(
            f"input {shown(mask.name)} has shape {list(mask.shape)}; "
            f"accepted: {list(ids.shape)}, that of {shown(ids.name)}"
        )
    values = array_of(mask)
    kept: NDArray[np.bool_] = (values != 0).reshape(-1, values.shape[-1])
    if not ((values == 0) | (values == 1)).all():
        raise InvalidRequest(f"input {shown(mask.name)} holds more than 0 and 1")
    starts = kept[:, 0] + np.count_nonzero(kept[:, 1:] & ~kept[:, :-1], axis=1)
    if not (starts == 1).all():
        row = int(np.argmin(starts == 1))
        raise InvalidRequest(
            f"input {shown(mask.name)}: row {row} needs its ones together and at least one of them"
        )
    return kept


def check_zeros(tensor: TensorValue) -> None:
    """InvalidRequest when a tensor, accepted only because it changes nothing, is not zero."""
    if array_of(tensor).any():
        raise InvalidRequest(f"input {shown(tensor.name)} is accepted only when all of it is 0")


def raw_contents(tensor: TensorValue) -> bytes:
    """A tensor's elements as raw OIP contents."""
    return frame(tensor.strings) if tensor.dtype == STRING else tensor.data


def write_typed(tensor: TensorValue, into: OutputTensor) -> None:
    """Put a tensor's elements into the typed contents of an OIP output."""
    is_text = tensor.dtype == STRING
    elements = list(tensor.strings) if is_text else array_of(tensor).ravel().tolist()
    getattr(into.contents, BY_DTYPE[tensor.dtype].contents).extend(elements)


def has_typed_form(tensor: TensorValue) -> bool:
    """False for the element types that typed contents cannot hold."""
    return bool(BY_DTYPE[tensor.dtype].contents)


def top_classes(tensor: TensorValue, count: int, labels: Sequence[str]) -> TensorValue:
    """The `count` highest of each row as "value:index:label" strings, best first.

    The last dimension of `tensor` holds the classes. Raises InvalidRequest when it is
    not numeric or has no dimension.
    """
    if tensor.dtype == STRING or not tensor.shape:
        raise InvalidRequest(f"output {shown(tensor.name)} has no classes to rank")
    values = array_of(tensor).reshape(-1, tensor.shape[-1])
    count = min(count, values.shape[1])
    order = np.argsort(-values.astype(np.float64), axis=1, kind="stable")[:, :count]
    form = "{:f}" if values.dtype.kind == "f" else "{:d}"
    strings = tuple(
        _class_text(form.format(row[index]), index, labels).encode()
        for row, best in zip(values.tolist(), order.tolist(), strict=True)
        for index in best
    )
    return TensorValue(tensor.name, STRING, (*tensor.shape[:-1], count), strings=strings)


def _class_text(value: str, index: int, labels: Sequence[str]) -> str:
    return f"{value}:{index}:{labels[index]}" if index < len(labels) else f"{value}:{index}"


def best_classes(tensor: TensorValue) -> list[tuple[int, float]]:
    """Index and softmax probability of the best class of each row of logits [N, C]."""
    found = []
    # Rows are few and short: plain floats cost less than arrays.
    for row in array_of(tensor).reshape(-1, tensor.shape[-1]).tolist():
        best = max(row)
        found.append((row.index(best), 1.0 / sum([math.exp(each - best) for each in row])))
    return found


def read_native(tensor: common_pb2.Tensor) -> TensorValue:
    """A native tensor as a domain tensor; raises InvalidRequest like `read_oip`."""
    kind = BY_CODE.get(tensor.data_type)
    name = tensor.name
    if kind is None:
        raise InvalidRequest(
            f"tensor {shown(name)} has data type {tensor.data_type}; "
            f"accepted: {listed(common_pb2.DataType.Name(c) for c in BY_CODE)}"  # type: ignore[arg-type]
        )
    shape, count = checked_shape(name, tensor.shape)
    if kind.dtype == STRING:
        check_strings(name, count)
        if len(tensor.strings) != count or tensor.data:
            raise InvalidRequest(
                f"tensor {shown(name)} holds {len(tensor.strings)} strings and "
                f"{len(tensor.data)} data bytes; shape {list(shape)} takes {count} and 0"
            )
        return TensorValue(name, STRING, shape, strings=tuple(tensor.strings))
    size = count * kind.size
    if len(tensor.data) != size or tensor.strings:
        raise InvalidRequest(
            f"tensor {shown(name)} holds {len(tensor.data)} data bytes and "
            f"{len(tensor.strings)} strings; shape {list(shape)} of {kind.dtype} "
            f"takes {size} and 0"
        )
    if kind.dtype == "bool":
        _check_bools(name, tensor.data)
    return TensorValue(name, kind.dtype, shape, tensor.data)


def write_native(tensor: TensorValue) -> common_pb2.Tensor:
    """A domain tensor as a native one."""
    return common_pb2.Tensor(
        name=tensor.name,
        data_type=BY_DTYPE[tensor.dtype].code,  # type: ignore[arg-type]
        shape=tensor.shape,
        data=tensor.data,
        strings=tensor.strings,
    )


def native_rows(sequences: common_pb2.TokenSequences) -> TokenRows:
    """Native token sequences; InvalidRequest when ids and lengths do not agree."""
    data, lengths = sequences.token_ids, sequences.lengths
    if len(lengths) > LIMITS.items:
        raise InvalidRequest(f"{len(lengths)} sequences in one request; at most {LIMITS.items}")
    if len(data) != 4 * sum(lengths) or not data:
        raise InvalidRequest(
            f"token_ids has {len(data)} bytes; lengths that sum to {sum(lengths)} take "
            f"{4 * sum(lengths)}, and at least one id is needed"
        )
    high = int(_highest(np.frombuffer(data, "<u4")))
    if high > _HIGHEST_ID:
        raise InvalidRequest("token_ids holds a negative id")
    return TokenRows(data, tuple(lengths), high)


def _typed(tensor: InputTensor, kind: ElementType, count: int) -> bytes:
    values = _contents(tensor, kind)
    if count > LIMITS.typed_elements:
        raise InvalidRequest(
            f"input {shown(tensor.name)} has {count} elements; typed contents take at most "
            f"{LIMITS.typed_elements}, raw_input_contents more"
        )
    if len(values) != count:
        raise InvalidRequest(
            f"input {shown(tensor.name)} holds {len(values)} elements in {kind.contents}; "
            f"shape {list(tensor.shape)} takes {count}"
        )
    elements = np.array(values, dtype=np.int64 if kind.high else _NUMPY[kind.oip])
    if kind.high and ((elements < kind.low) | (elements > kind.high)).any():
        raise InvalidRequest(
            f"input {shown(tensor.name)} holds elements outside {kind.oip}; "
            f"accepted: {kind.low} to {kind.high}"
        )
    return elements.astype(_NUMPY[kind.oip], copy=False).tobytes()


def _typed_strings(tensor: InputTensor, count: int) -> tuple[bytes, ...]:
    values = _contents(tensor, BY_OIP["BYTES"])
    if len(values) != count:
        raise InvalidRequest(
            f"input {shown(tensor.name)} holds {len(values)} elements in bytes_contents; "
            f"shape {list(tensor.shape)} takes {count}"
        )
    return tuple(values)


def _contents(tensor: InputTensor, kind: ElementType) -> Sequence[Any]:
    """The one field of typed contents that fits the datatype; no other may be filled."""
    contents: InferTensorContents = tensor.contents
    for field, _ in contents.ListFields():
        if field.name != kind.contents:
            accepted = kind.contents or "raw_input_contents"
            raise InvalidRequest(
                f"input {shown(tensor.name)} of datatype {kind.oip} has {field.name}; "
                f"accepted: {accepted}"
            )
    if not kind.contents:
        raise InvalidRequest(
            f"input {shown(tensor.name)} of datatype {kind.oip} has no content; "
            "accepted: raw_input_contents"
        )
    values: Sequence[Any] = getattr(contents, kind.contents)
    return values


def check_strings(name: str, count: int) -> None:
    """InvalidRequest when a string tensor has more elements than a request may hold."""
    if count > LIMITS.strings:
        raise InvalidRequest(
            f"tensor {shown(name)} has {count} strings; at most {LIMITS.strings} in one tensor"
        )


def _check_bools(name: str, data: bytes) -> None:
    if data and int(np.frombuffer(data, np.uint8).max()) > 1:
        raise InvalidRequest(f"input {shown(name)} holds BOOL bytes other than 0 and 1")
