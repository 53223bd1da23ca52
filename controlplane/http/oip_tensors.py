"""Input tensors of the Open Inference Protocol's JSON: elements inside it, or bytes behind it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from controlplane.http.fields import kind_of
from controlplane.http.problems import InvalidField
from controlplane.policy.records import TensorValue
from controlplane.rpc.asks import LIMITS, checked_shape
from controlplane.rpc.convert import STRING, ElementType, check_strings, element_type, read_raw

SHARED_MEMORY = "shared_memory_region"

# Wide enough to see what a narrower type would not hold.
_FLOAT: np.dtype[Any] = np.dtype(np.float64)
_INTEGER: np.dtype[Any] = np.dtype(np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class InputParameters:
    """`parameters` of an input."""

    binary_data_size: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    shared_memory_region: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InputTensor:
    """One of `inputs`; its elements are in `data`, or so many bytes behind the JSON."""

    name: str
    datatype: str
    shape: tuple[Annotated[int, Field(ge=1, lt=2**63)], ...]
    data: Any = None
    parameters: InputParameters | None = None


_NO_PARAMETERS = InputParameters()


def read_tensors(
    inputs: Sequence[InputTensor], body: bytes, at: int
) -> tuple[tuple[TensorValue, ...], int]:
    """The inputs as domain tensors, and where the last one's bytes end in the `body`.

    Those of the first begin `at` the end of the JSON. Raises InvalidRequest naming the input, what
    was sent and what is accepted.
    """
    tensors = []
    for index, each in enumerate(inputs):
        place = f"inputs.{index}"
        size = _binary_size(place, each)
        if size is None:
            tensors.append(_from_json(f"{place}.data", each))
            continue
        if size > len(body) - at:
            raise InvalidField(
                f"{place}.parameters.binary_data_size",
                f"is {size}; {len(body) - at} bytes are left of the body",
            )
        data = body[at : at + size]
        at += size
        tensors.append(read_raw(each.name, each.datatype, each.shape, data))
    return tuple(tensors), at


def _binary_size(place: str, tensor: InputTensor) -> int | None:
    """How many bytes hold the elements, None when they are in the JSON."""
    parameters = tensor.parameters or _NO_PARAMETERS
    if parameters.shared_memory_region is not None:
        raise InvalidField(
            f"{place}.parameters.{SHARED_MEMORY}", "is not supported; accepted: data or binary data"
        )
    size = parameters.binary_data_size
    if (size is None) is (tensor.data is None):
        fault = "is missing, and so is" if size is None else "comes beside"
        raise InvalidField(
            f"{place}.data", f"{fault} parameters.binary_data_size; accepted: one of them"
        )
    return size


def _from_json(field: str, tensor: InputTensor) -> TensorValue:
    kind = element_type(tensor.name, tensor.datatype)
    shape, count = checked_shape(tensor.name, tensor.shape)
    if count > LIMITS.typed_elements:
        raise InvalidField(
            field,
            f"the shape has {count} elements; JSON takes at most {LIMITS.typed_elements}, binary "
            "data more",
        )
    if kind.dtype == STRING:
        check_strings(tensor.name, count)
    values = _flat(field, tensor.data)
    if len(values) != count:
        raise InvalidField(
            field, f"holds {len(values)} elements; shape {list(shape)} takes {count}"
        )
    _check_kinds(field, kind, values)
    if kind.dtype == STRING:
        strings = tuple([each.encode() for each in values])
        return TensorValue(tensor.name, STRING, shape, strings=strings)
    return TensorValue(tensor.name, kind.dtype, shape, _encoded(field, kind, values))


def _flat(field: str, data: object) -> list[Any]:
    """The elements of arrays in arrays, row by row; arrays of one depth have one length."""
    if not isinstance(data, list):
        raise InvalidField(field, f"must be an array, got {kind_of(data)}")
    values: list[Any] = data
    while values and isinstance(values[0], list):
        lengths = {len(each) if isinstance(each, list) else -1 for each in values}
        if len(lengths) > 1:
            raise InvalidField(field, "its arrays must be of one length at each depth")
        values = list(chain.from_iterable(values))
    return values


def _check_kinds(field: str, kind: ElementType, values: Sequence[object]) -> None:
    """InvalidField when an element is not of the kind that the datatype takes in JSON."""
    accepted, said = _accepted(kind)
    if accepted.issuperset(map(type, values)):
        return
    index, odd = next((i, each) for i, each in enumerate(values) if type(each) not in accepted)
    raise InvalidField(field, f"element {index} must be {said}, got {kind_of(odd)}")


def _accepted(kind: ElementType) -> tuple[frozenset[type], str]:
    # By `type`: to isinstance a bool is an int.
    if kind.dtype == STRING:
        return frozenset((str,)), "a string"
    if kind.dtype == "bool":
        return frozenset((bool,)), "true or false"
    if kind.numpy.kind == "f":
        return frozenset((int, float)), "a number"
    return frozenset((int,)), "an integer"


def _encoded(field: str, kind: ElementType, values: Sequence[Any]) -> bytes:
    """Elements of the accepted kinds in little-endian bytes; InvalidField when one does not fit."""
    target = kind.numpy
    if kind.dtype == "bool":
        return np.array(values, target).tobytes()
    floats = target.kind == "f"
    try:
        wide = np.array(values, _FLOAT if floats else _INTEGER)
    except OverflowError:
        raise _outside(field, kind) from None
    if floats:
        with np.errstate(over="ignore"):
            narrow = wide.astype(target)
        fits = not (np.isinf(narrow) & np.isfinite(wide)).any()
    else:
        bounds = np.iinfo(target)
        narrow = wide.astype(target)
        fits = not ((wide < bounds.min) | (wide > bounds.max)).any()
    if not fits:
        raise _outside(field, kind)
    return narrow.tobytes()


def _outside(field: str, kind: ElementType) -> InvalidField:
    return InvalidField(field, f"holds a number that {kind.oip} cannot hold")
