"""Places weights in files beside a graph, so that every process of a host maps the same bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from worker.models.graph import element_type

# Offsets are multiples of a memory page, which mapping a part of a file needs.
ALIGNMENT = 4096
# Smaller tensors than this travel inside the graph file.
INLINE_BYTES = 32 * 1024


@dataclass(frozen=True, slots=True)
class PlacedWeights:
    """Tensors by name as a graph refers to them, and what its weight file holds at which offset."""

    tensors: Mapping[str, onnx.TensorProto]
    segments: tuple[tuple[int, NDArray[Any]], ...]
    size: int


def place_weights(arrays: Mapping[str, NDArray[Any]], location: str) -> PlacedWeights:
    """Lay ``arrays`` out in a file called ``location``; small ones stay inside the graph.

    The layout depends on names, shapes and order only, so that graphs can share one file.
    """
    tensors: dict[str, onnx.TensorProto] = {}
    segments: list[tuple[int, NDArray[Any]]] = []
    offset = 0
    for name, value in arrays.items():
        array = np.asarray(value, order="C")
        if array.nbytes < INLINE_BYTES:
            tensors[name] = numpy_helper.from_array(array, name)
            continue
        tensors[name] = _external(name, array, location, offset)
        segments.append((offset, array))
        offset += -(-array.nbytes // ALIGNMENT) * ALIGNMENT
    return PlacedWeights(tensors, tuple(segments), offset)


def write_weights(placed: PlacedWeights, path: Path) -> None:
    """Write the weight file; the bytes between segments are zero."""
    with path.open("wb") as stream:
        for offset, array in placed.segments:
            stream.seek(offset)
            stream.write(array.data)
        stream.truncate(placed.size)


def _external(name: str, array: NDArray[Any], location: str, offset: int) -> onnx.TensorProto:
    tensor = onnx.TensorProto(
        name=name,
        data_type=element_type(array.dtype.name),
        dims=array.shape,
        data_location=onnx.TensorProto.EXTERNAL,
    )
    for key, value in (("location", location), ("offset", offset), ("length", array.nbytes)):
        tensor.external_data.add(key=key, value=str(value))
    return tensor
