"""Messages to and from bytes, as both services do it: nothing that a peer sends raises.

Large contents are written around protobuf, which copies them three times on the way into a
message; `framed` puts them between the bytes of their neighbours, to be joined once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

# From here on a copy costs more than framing by hand.
LARGE_BYTES = 1 << 20

_LENGTH_DELIMITED = 2


class Undecodable:
    """Stands for a message whose bytes are not the protobuf message of the method."""

    __slots__ = ("expected",)

    def __init__(self, expected: str) -> None:
        self.expected = expected

    def __str__(self) -> str:
        return f"the message is not a valid {self.expected}"


def decoder(method: MethodDescriptor) -> Callable[[bytes], Message | Undecodable]:
    """Reads the requests of a method; bytes that do not decode become `Undecodable`."""
    parse = GetMessageClass(method.input_type).FromString
    undecodable = Undecodable(method.input_type.full_name)

    def decode(data: bytes) -> Message | Undecodable:
        try:
            return parse(data)
        except DecodeError:
            return undecodable

    return decode


def encode(message: Message | bytes) -> bytes:
    """The bytes of a message; bytes are taken for an encoded one."""
    return message if isinstance(message, bytes) else message.SerializeToString()


Part: TypeAlias = bytes | memoryview


def framed(field_number: int, parts: Sequence[Part]) -> list[Part]:
    """One length-delimited field (bytes, string or message) whose content is `parts`.

    Memory views must be of bytes. Protobuf reads fields in any order, so a message's encoded
    rest may stand before it. Source: https://protobuf.dev/programming-guides/encoding/
    """
    key = _varint(field_number << 3 | _LENGTH_DELIMITED)
    return [key + _varint(sum(map(len, parts))), *parts]


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
