"""Changed messages: fields of valid ones exchanged, copied, cut or filled oddly; or plain bytes.

Every choice comes from a `Dice`, so a message is known by its seed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import numpy as np

_VARINT, _FIXED64, _DELIMITED, _FIXED32 = 0, 1, 2, 5
_WIDTHS = {_FIXED64: 8, _FIXED32: 4}
_NUMBERS = (
    *(0, 1, 2, 3, 4, 7, 8, 16, 63, 64, 65, 127, 128, 255, 256, 1023, 1024, 65535, 1 << 20),
    *((1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, 1 << 40, (1 << 63) - 1, 1 << 63),
    *((1 << 64) - 1, (1 << 64) - 2, (1 << 64) - (1 << 31)),
)
_FLOATS = (0.0, -0.0, 1.0, -1.0, 1e-300, 1e300, float("nan"), float("inf"), -float("inf"), 5e-324)
_STRINGS = (
    *(b"", b"\0", b"a", b" ", b"-1", b"0", b"1e999", b"\xff\xfe\xfd", b"\xed\xa0\x80", b"\xf0\x9f"),
    *(b"tiny", b"tiny-a", b"tiny-b", b"words", b"other", b"adder", b"echo", b"writer", b"vectors"),
    *(b"text", b"input_ids", b"attention_mask", b"logits", b"sum", b"BYTES", b"FP32", b"INT64"),
    *(b"tenant", b"deadline_ms", b"x" * 65, b"y" * 5000, "é海".encode(), b"\x05\0\0\0good "),
)
_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 0.5, 1e308, -1e308, float("nan"), float("inf"), 2**31, 2**63),
    *(
        2**64,
        -(2**63) - 1,
        10**40,
        "",
        "a",
        "\0",
        "\ud800",
        "x" * 70,
        [],
        {},
        [[]],
        [None],
        {"": 0},
    ),
    *(["good film"], [[1, 2], [3]], [1, 2.5], {"type": "text", "text": "good"}, "user", "vectors"),
    *("writer", "assistant", "text", "../../etc/passwd", "/etc/passwd"),
)

Field = tuple[int, int, bytes | int]
Mutator = Callable[["Dice", Sequence[bytes]], bytes]


class Dice:
    """Numbers drawn from a seed, many at a time."""

    def __init__(self, *seed: int) -> None:
        self._generator = np.random.default_rng(seed)
        self._drawn: list[int] = []

    def below(self, most: int) -> int:
        """A whole number from 0 to `most` - 1."""
        if not self._drawn:
            self._drawn = self._generator.integers(0, 1 << 48, 8192).tolist()
        return self._drawn.pop() % most

    def of(self, options: Sequence[Any]) -> Any:
        """One of several."""
        return options[self.below(len(options))]

    def bytes(self, count: int) -> bytes:
        """So many bytes."""
        return self._generator.bytes(count)


def raw(dice: Dice, seeds: Sequence[bytes]) -> bytes:
    """A valid message with some of its bytes changed, cut, repeated or added; or bytes alone."""
    if dice.below(16) == 0:
        return dice.bytes(dice.below(64))
    data = bytearray(dice.of(seeds))
    for _ in range(1 + dice.below(4)):
        at = dice.below(len(data) + 1)
        kind = dice.below(5)
        if kind == 0 and at < len(data):
            data[at] = dice.below(256)
        elif kind == 1 and at < len(data):
            data[at] ^= 1 << dice.below(8)
        elif kind == 2:
            del data[at : at + dice.below(8)]
        elif kind == 3:
            data[at:at] = data[at : at + dice.below(16)]
        else:
            data[at:at] = dice.of(_STRINGS)[:64]
    return bytes(data)


def protobuf(dice: Dice, seeds: Sequence[bytes]) -> bytes:
    """A valid message with some of its fields changed, with true lengths; at times raw bytes."""
    if dice.below(5) == 0:
        return raw(dice, seeds)
    data: bytes = dice.of(seeds)
    for _ in range(1 + dice.below(3)):
        fields = _parsed(data)
        if fields is None:
            break
        data = _written(_changed(fields, dice, seeds, 0))
    return data


def _changed(fields: list[Field], dice: Dice, seeds: Sequence[bytes], depth: int) -> list[Field]:
    kind = dice.below(10)
    if not fields or kind == 0:
        given = _parsed(dice.of(seeds)) or [(1 + dice.below(20), _DELIMITED, b"")]
        fields.insert(dice.below(len(fields) + 1), dice.of(given))
        return fields
    at = dice.below(len(fields))
    number, wire, value = fields[at]
    if kind == 1:
        del fields[at]
    elif kind == 2:
        fields.insert(at, fields[at])
    elif kind == 3:
        fields[at] = (1 + dice.below(24), wire, value)
    elif kind == 4:
        fields[at] = (number, *_drawn(dice))
    elif isinstance(value, int):
        fields[at] = (number, wire, dice.of(_NUMBERS))
    elif wire != _DELIMITED:
        fields[at] = (number, wire, _fixed(dice, wire))
    else:
        inner = _parsed(value) if value and depth < 6 and dice.below(8) else None
        if inner is None:
            fields[at] = (number, wire, _text(dice, value))
        else:
            fields[at] = (number, wire, _written(_changed(inner, dice, seeds, depth + 1)))
    return fields


def _drawn(dice: Dice) -> tuple[int, bytes | int]:
    """Some value of some wire type."""
    wire = dice.of((_VARINT, _FIXED64, _DELIMITED, _FIXED32))
    if wire == _VARINT:
        return wire, dice.of(_NUMBERS)
    return wire, dice.of(_STRINGS) if wire == _DELIMITED else _fixed(dice, wire)


def _fixed(dice: Dice, wire: int) -> bytes:
    kind = "<f8" if wire == _FIXED64 else "<f4"
    with np.errstate(over="ignore"):
        return np.array(dice.of(_FLOATS)).astype(kind).tobytes()


def _text(dice: Dice, value: bytes) -> bytes:
    kind = dice.below(4)
    if kind == 0:
        return bytes(dice.of(_STRINGS))
    if kind == 1:
        return value[: dice.below(len(value) + 1)]
    if kind == 2:
        return value + dice.bytes(1 + dice.below(8))
    return value * (1 + dice.below(3))


def _parsed(data: bytes) -> list[Field] | None:
    """The fields of a message, None when the bytes are none."""
    fields: list[Field] = []
    at, end = 0, len(data)
    while at < end:
        tag, at = _read_varint(data, at)
        number, wire = tag >> 3, tag & 7
        if at < 0 or not 0 < number < 1 << 29:
            return None
        value: bytes | int
        if wire == _VARINT:
            value, at = _read_varint(data, at)
            if at < 0:
                return None
        elif wire == _DELIMITED:
            size, at = _read_varint(data, at)
            if at < 0 or at + size > end:
                return None
            value, at = data[at : at + size], at + size
        elif wire in _WIDTHS and at + _WIDTHS[wire] <= end:
            value, at = data[at : at + _WIDTHS[wire]], at + _WIDTHS[wire]
        else:
            return None
        fields.append((number, wire, value))
    return fields


def _written(fields: Sequence[Field]) -> bytes:
    parts: list[bytes] = []
    for number, wire, value in fields:
        parts.append(_varint(number << 3 | wire))
        if isinstance(value, int):
            parts.append(_varint(value))
        else:
            if wire == _DELIMITED:
                parts.append(_varint(len(value)))
            parts.append(value)
    return b"".join(parts)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    """The number, and where it ends; that is -1 when it does not."""
    value = shift = 0
    while at < len(data) and shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    return 0, -1


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def document(dice: Dice, seeds: Sequence[bytes]) -> bytes:
    """A valid JSON document with some of its values replaced, left out or nested; or raw bytes."""
    if dice.below(5) == 0:
        return raw(dice, seeds)
    made = json.loads(dice.of(seeds))
    for _ in range(1 + dice.below(3)):
        made = _replaced(made, dice, 0)
    return json.dumps(made).encode("utf-8", "surrogatepass")


def _replaced(value: Any, dice: Dice, depth: int) -> Any:
    if not isinstance(value, dict | list) or not value or (depth and dice.below(4) == 0):
        return deepcopy(dice.of(_VALUES)) if dice.below(6) else [value, value]
    if isinstance(value, dict):
        key = dice.of(list(value))
        kind = dice.below(6)
        if kind == 0:
            del value[key]
        elif kind == 1:
            added = dice.of(("", "tenant", "n", "x", "variant", key))
            value[added] = deepcopy(dice.of(_VALUES))
        else:
            value[key] = _replaced(value[key], dice, depth + 1)
        return value
    at = dice.below(len(value))
    if dice.below(5) == 0:
        value.insert(at, value[at])
    else:
        value[at] = _replaced(value[at], dice, depth + 1)
    return value
