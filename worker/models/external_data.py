"""Weight files that an ONNX graph names, and the rule that they lie beside it.

A graph is read by its wire format alone, so that nothing is loaded before it is known what it would
open. Sources: onnx.proto of ONNX, https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

from worker.errors import ModelLoadError

_VARINT, _FIXED64, _DELIMITED, _FIXED32 = 0, 1, 2, 5
# The largest field number there is; a reader that cuts larger ones short would see another.
_MOST_FIELD = (1 << 29) - 1
_DEEPEST = 64

# The messages that can hold tensors: the kind of each field that leads to one.
_MODEL, _TRAINING, _FUNCTION, _GRAPH, _NODE, _ATTRIBUTE, _SPARSE, _TENSOR, _ENTRY = range(9)
_FIELDS: Mapping[int, Mapping[int, int]] = {
    _MODEL: {7: _GRAPH, 20: _TRAINING, 25: _FUNCTION},
    _TRAINING: {1: _GRAPH, 2: _GRAPH},
    _FUNCTION: {7: _NODE, 11: _ATTRIBUTE},
    _GRAPH: {1: _NODE, 5: _TENSOR, 15: _SPARSE},
    _NODE: {5: _ATTRIBUTE},
    _ATTRIBUTE: {
        5: _TENSOR,
        6: _GRAPH,
        10: _TENSOR,
        11: _GRAPH,
        22: _SPARSE,
        23: _SPARSE,
    },
    _SPARSE: {1: _TENSOR, 2: _TENSOR},
    _TENSOR: {13: _ENTRY},
}
_KEY, _VALUE, _LOCATION = 1, 2, b"location"


def external_files(graph: bytes) -> tuple[str, ...]:
    """Names of the files a serialised ONNX model refers to, sorted; ValueError for other bytes."""
    names: set[str] = set()
    waiting = [(_MODEL, 0, len(graph), 0)]
    while waiting:
        kind, begin, end, depth = waiting.pop()
        if kind == _ENTRY:
            names.update(_locations(graph, begin, end))
            continue
        leading = _FIELDS[kind]
        for field, wire, first, last in _fields(graph, begin, end):
            inner = leading.get(field)
            if inner is not None and wire == _DELIMITED:
                if depth == _DEEPEST:
                    raise ValueError("the graph is nested too deeply")
                waiting.append((inner, first, last, depth + 1))
    return tuple(sorted(names))


def confined(graph: Path, content: bytes) -> tuple[str, ...]:
    """The weight files of a graph, whose bytes are `content`, relative to its folder.

    Raises ModelLoadError when one is missing or lies, by its name or by a link, anywhere but in
    the graph's folder or below it.
    """
    try:
        names = external_files(content)
    except ValueError as error:
        raise ModelLoadError(f"cannot load {graph}: it is no ONNX graph ({error})") from None
    folder = graph.parent.resolve()
    for name in names:
        check_inside(folder, name, f"{graph.name} names weights")
        if not (folder / name).is_file():
            raise ModelLoadError(
                f"{graph.name} names weights in {name[:200]!r}; there is no such file in {folder}"
            )
    return names


def check_inside(folder: Path, name: str, what: str) -> None:
    """ModelLoadError unless `name` lies in the resolved `folder`, whatever it links to."""
    pure = PurePosixPath(name)
    outside = pure.is_absolute() or ".." in pure.parts or "\\" in name or "\0" in name
    if not outside:
        outside = not (folder / name).resolve().is_relative_to(folder)
    if outside:
        raise ModelLoadError(f"{what} in {name[:200]!r}, which is not inside {folder}")


def _fields(data: bytes, begin: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Number, wire type and place of each field of a message; ValueError when it is none."""
    at = begin
    while at < end:
        tag, at = _varint(data, at, end)
        field, wire = tag >> 3, tag & 7
        if not 0 < field <= _MOST_FIELD:
            raise ValueError(f"field {field} at byte {at}")
        if wire == _VARINT:
            first = at
            _, at = _varint(data, at, end)
        elif wire == _DELIMITED:
            size, first = _varint(data, at, end)
            at = first + size
        elif wire in (_FIXED64, _FIXED32):
            first, at = at, at + (8 if wire == _FIXED64 else 4)
        else:
            raise ValueError(f"wire type {wire} at byte {at}")
        if at > end:
            raise ValueError(f"a field goes beyond its message at byte {first}")
        yield field, wire, first, at


def _varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end and shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise ValueError(f"a number does not end at byte {at}")


def _locations(data: bytes, begin: int, end: int) -> list[str]:
    """The values of an entry, when any of its keys says that they are a file's name."""
    keys: list[bytes] = []
    values: list[bytes] = []
    for field, wire, first, last in _fields(data, begin, end):
        if wire == _DELIMITED and field in (_KEY, _VALUE):
            (keys if field == _KEY else values).append(data[first:last])
    if _LOCATION not in keys:
        return []
    return [value.decode("utf-8", "surrogateescape") for value in values or (b"",)]
