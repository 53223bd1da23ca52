"""Finds out what a finished ONNX file takes and returns, and which files belong to it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import onnx

from worker.models.errors import CheckpointError
from worker.models.graph import dtype_name
from worker.models.layouts import RAGGED_INPUTS
from worker.models.manifest import DTYPES, Layout, TensorSpec

# What inputs with the keys and values of a decoder begin with.
PAST = "past_key_values."
_PADDED_REQUIRED = {"input_ids", "attention_mask"}
_PADDED_ALLOWED = _PADDED_REQUIRED | {"token_type_ids"}


@dataclass(frozen=True, slots=True)
class Signature:
    """A graph's inputs and outputs, the precision of its weights, and its external files."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    precision: str
    external: tuple[str, ...]

    @property
    def layout(self) -> Layout:
        """The layout that the inputs fit."""
        if {(s.name, s.dtype) for s in self.inputs} == {(s.name, s.dtype) for s in RAGGED_INPUTS}:
            return "ragged"
        names = {spec.name for spec in self.inputs}
        if any(name.startswith(PAST) for name in names):
            return "dense"
        tokens = all(
            spec.dtype in ("int64", "int32") and spec.shape == (-1, -1) for spec in self.inputs
        )
        return "padded" if tokens and _PADDED_REQUIRED <= names <= _PADDED_ALLOWED else "tensor"


def read_signature(path: Path) -> Signature:
    """Read the signature of an ONNX file without its external data.

    Raises CheckpointError for a file that is no ONNX graph, refers to files outside its folder,
    or has tensors of types that the engine does not take.
    """
    try:
        model = onnx.load(str(path), load_external_data=False)
    except Exception as error:  # a damaged file raises what the serialization library chooses
        raise CheckpointError(
            f"an ONNX graph in {path}", str(error), "name another file"
        ) from error
    if not model.graph.output:
        raise CheckpointError(f"an ONNX graph in {path}", "no graph", "name another file")
    tensors = list(_tensors(model.graph))
    weights = {tensor.name for tensor in model.graph.initializer}
    declared = [value for value in model.graph.input if value.name not in weights]
    external = sorted({_location(tensor) for tensor in tensors} - {""})
    for location in external:
        pure = PurePosixPath(location)
        if pure.is_absolute() or ".." in pure.parts:
            raise CheckpointError(
                f"weights beside {path.name}", repr(location), "save the graph with its data again"
            )
        if not (path.parent / location).is_file():
            raise CheckpointError(
                f"the weight file {location} beside {path.name}", "no such file", "add it"
            )
    return Signature(
        tuple(_spec(value, path) for value in declared),
        tuple(_spec(value, path) for value in model.graph.output),
        _precision(tensors),
        tuple(external),
    )


def _spec(value: onnx.ValueInfoProto, path: Path) -> TensorSpec:
    if not value.type.HasField("tensor_type"):
        raise CheckpointError(
            f"dense tensors only in {path.name}",
            f"{value.name!r} of another kind",
            "export the graph with tensors as inputs and outputs",
        )
    kind = value.type.tensor_type
    dtype = dtype_name(kind.elem_type)
    if dtype not in DTYPES:
        raise CheckpointError(
            f"an element type of {', '.join(sorted(DTYPES))} for {value.name!r}",
            dtype,
            "export the graph with another type",
        )
    shape = tuple(
        int(axis.dim_value) if axis.HasField("dim_value") else -1 for axis in kind.shape.dim
    )
    return TensorSpec(value.name, dtype, shape)


def _precision(tensors: Sequence[onnx.TensorProto]) -> str:
    """Name the type that holds most of the weights' elements."""
    elements: dict[str, int] = {}
    for tensor in tensors:
        size = 1
        for axis in tensor.dims:
            size *= axis
        dtype = dtype_name(tensor.data_type)
        elements[dtype] = elements.get(dtype, 0) + size
    main = max(elements, key=lambda dtype: elements[dtype], default="float32")
    return {"float32": "fp32", "float16": "fp16", "int8": "int8", "uint8": "int8"}.get(main, main)


def _tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            if attribute.HasField("g"):
                yield from _tensors(attribute.g)


def _location(tensor: onnx.TensorProto) -> str:
    if tensor.data_location != onnx.TensorProto.EXTERNAL:
        return ""
    return next((str(entry.value) for entry in tensor.external_data if entry.key == "location"), "")
