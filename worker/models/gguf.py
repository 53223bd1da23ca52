"""Reads GGUF files: metadata, and tensors as float32 or as the quantised blocks they hold.

Format: the GGUF specification of the ggml project, versions 2 and 3, little endian.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from worker.models.blocks import BLOCK, Matrix, from_q4_0, from_q4_1, from_q8_0
from worker.models.errors import CheckpointError

_MAGIC = b"GGUF"
_SCALARS = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}
_STRING, _ARRAY = 8, 9
_MAX_COUNT = 1 << 24
# Type number -> (name, bytes of a group, values of a group).
_TYPES = {
    0: ("F32", 4, 1),
    1: ("F16", 2, 1),
    2: ("Q4_0", 18, BLOCK),
    3: ("Q4_1", 20, BLOCK),
    8: ("Q8_0", 34, BLOCK),
}


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One tensor: ``shape`` outermost first (as numpy has it), ``offset`` from the data's start."""

    kind: str
    shape: tuple[int, ...]
    offset: int
    size: int


class GgufFile:
    """An open GGUF file. A context manager; the file is mapped and read when asked for.

    Raises CheckpointError for a file that is not what it should be.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            with path.open("rb") as stream:
                self._map = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise CheckpointError(f"a GGUF file {path.name}", str(error), _REMEDY) from error
        try:
            self.metadata, self.tensors, self._data = _Header(self._map, path).read()
        except (struct.error, IndexError, UnicodeDecodeError) as error:
            self._map.close()
            raise CheckpointError(
                f"a whole GGUF file {path.name}", f"a damaged header ({error})", _REMEDY
            ) from error
        except CheckpointError:
            self._map.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._map.close()

    @property
    def name(self) -> str:
        """The file's name without its folder."""
        return self._path.name

    def value(self, key: str, kind: type[Any]) -> Any:
        """Return the metadata entry ``key``; raises CheckpointError when it is no ``kind``."""
        found = self.metadata.get(key)
        if isinstance(found, int) and kind is float:
            found = float(found)
        if not isinstance(found, kind) or (kind is int and isinstance(found, bool)):
            got = "nothing" if found is None else type(found).__name__
            raise CheckpointError(
                f"metadata {key!r} of type {kind.__name__} in {self._path.name}", got, _REMEDY
            )
        return found

    def vector(self, name: str) -> NDArray[np.float32]:
        """Return an unquantised tensor as float32, in its shape."""
        tensor = self._tensor(name)
        if tensor.kind not in ("F32", "F16"):
            raise CheckpointError(f"floats in {name!r}", tensor.kind, _REMEDY)
        dtype = np.float32 if tensor.kind == "F32" else np.float16
        raw = np.frombuffer(self._bytes(tensor), dtype).reshape(tensor.shape)
        return raw.astype(np.float32)

    def matrix(self, name: str) -> Matrix:
        """Return a matrix [outputs, inputs] in the form it is stored in."""
        tensor = self._tensor(name)
        if len(tensor.shape) != 2:
            raise CheckpointError(f"a matrix {name!r}", f"shape {tensor.shape}", _REMEDY)
        if tensor.kind in ("F32", "F16"):
            return Matrix.dense(self.vector(name))
        outputs, inputs = tensor.shape
        raw = np.frombuffer(self._bytes(tensor), np.uint8)
        groups = raw.reshape(outputs, inputs // BLOCK, -1)
        read = {"Q4_0": from_q4_0, "Q4_1": from_q4_1, "Q8_0": from_q8_0}[tensor.kind]
        return read(groups)

    def _tensor(self, name: str) -> GgufTensor:
        tensor = self.tensors.get(name)
        if tensor is None:
            some = ", ".join(list(self.tensors)[:4])
            raise CheckpointError(f"a tensor {name!r} in {self._path.name}", some, _REMEDY)
        return tensor

    def _bytes(self, tensor: GgufTensor) -> bytes:
        start = self._data + tensor.offset
        return self._map[start : start + tensor.size]


_REMEDY = "use a LLaMA-architecture GGUF of type F32, F16, Q4_0, Q4_1 or Q8_0"


class _Header:
    """Reads what comes before the tensors' bytes."""

    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self._data = data
        self._name = path.name
        self._at = 0

    def read(self) -> tuple[Mapping[str, Any], Mapping[str, GgufTensor], int]:
        magic = self._data[:4]
        self._at = 4
        version = self._scalar("<I")
        if magic != _MAGIC or version not in (2, 3):
            raise CheckpointError(
                f"GGUF version 2 or 3 in {self._name}", f"{magic!r} version {version}", _REMEDY
            )
        tensors, entries = self._count(), self._count()
        metadata = {}
        for _ in range(entries):
            key = self._string()
            metadata[key] = self._value(self._scalar("<I"))
        found = {}
        for _ in range(tensors):
            name = self._string()
            found[name] = self._tensor(name)
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or not 1 <= alignment <= 1 << 20:
            raise CheckpointError("an alignment of bytes", repr(alignment), _REMEDY)
        start = -(-self._at // alignment) * alignment
        for name, tensor in found.items():
            if start + tensor.offset + tensor.size > len(self._data):
                raise CheckpointError(
                    f"the bytes of {name!r} in {self._name}", "the end of the file", _REMEDY
                )
        return metadata, found, start

    def _tensor(self, name: str) -> GgufTensor:
        dimensions = self._scalar("<I")
        if not 1 <= dimensions <= 4:
            raise CheckpointError(f"1 to 4 dimensions of {name!r}", str(dimensions), _REMEDY)
        shape = tuple(self._count(1 << 40) for _ in range(dimensions))[::-1]
        number, offset = self._scalar("<I"), self._scalar("<Q")
        if number not in _TYPES:
            raise CheckpointError(f"a known type of {name!r}", f"type {number}", _REMEDY)
        kind, size, values = _TYPES[number]
        if shape[-1] % values:
            raise CheckpointError(
                f"rows of {name!r} in multiples of {values}", f"shape {shape}", _REMEDY
            )
        count = 1
        for extent in shape:
            count *= extent
        return GgufTensor(kind, shape, offset, count // values * size)

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind != _ARRAY:
            return self._scalar(self._format(kind))
        item, count = self._scalar("<I"), self._count()
        if item == _STRING:
            return [self._string() for _ in range(count)]
        layout = self._format(item)
        size = struct.calcsize(layout)
        begin = self._at
        self._at += size * count
        return [x[0] for x in struct.iter_unpack(layout, self._data[begin : self._at])]

    def _format(self, kind: int) -> str:
        if kind not in _SCALARS:
            raise CheckpointError(f"known metadata types in {self._name}", f"type {kind}", _REMEDY)
        return _SCALARS[kind]

    def _scalar(self, layout: str) -> Any:
        (value,) = struct.unpack_from(layout, self._data, self._at)
        self._at += struct.calcsize(layout)
        return value

    def _count(self, limit: int = _MAX_COUNT) -> int:
        value: int = self._scalar("<Q")
        if value > limit:
            raise CheckpointError(f"at most {limit} entries in {self._name}", str(value), _REMEDY)
        return value

    def _string(self) -> str:
        length = self._count()
        begin = self._at
        self._at += length
        if self._at > len(self._data):
            raise CheckpointError(f"a whole GGUF file {self._name}", "its end", _REMEDY)
        return self._data[begin : self._at].decode("utf-8")
