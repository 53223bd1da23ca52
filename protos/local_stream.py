"""Execute's messages on a socket of one machine: each behind its length, little-endian.

The caller's first message is the id of its control plane (empty for none), the worker's first
its own id; from then on either side sends the stream's messages whenever it likes. Names are
abstract Unix addresses: nothing of them is left in the file system, and who has them is told by
the system (docs/decisions/0090-local-streams.md).
"""

from __future__ import annotations

import os
import socket
import struct
from typing import Protocol

HEADER_BYTES = 4
# Sizes of a name, so that one that cannot be an address is not tried.
_LONGEST_NAME = 100

_CREDENTIALS = struct.Struct("3i")


class FrameFault(ValueError):
    """What came is no message; the text says why."""


class Socket(Protocol):
    """The part of a socket that says who is at its other end."""

    def getsockopt(self, level: int, option: int, size: int, /) -> bytes: ...


def address_of(name: str) -> str:
    """The address of a socket by its name; ValueError when there can be none."""
    if not 0 < len(name) <= _LONGEST_NAME or not name.isascii() or "\0" in name:
        raise ValueError(f"a socket's name has 1 to {_LONGEST_NAME} ASCII characters, got {name!r}")
    return f"\0{name}"


def same_user(connected: Socket) -> bool:
    """Whether the process at the other end is one of this process's user."""
    size = _CREDENTIALS.size
    found = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    return bool(_CREDENTIALS.unpack(found)[1] == os.geteuid())


def header(size: int) -> bytes:
    """What stands before a message of so many bytes."""
    return size.to_bytes(HEADER_BYTES, "little")


class Frames:
    """Puts messages together again out of pieces as they come; not thread-safe."""

    __slots__ = ("_held", "_most", "_needed", "_pieces")

    def __init__(self, max_message_bytes: int) -> None:
        self._most = max_message_bytes
        self._pieces: list[bytes] = []
        self._held = 0
        # Bytes without which the first message cannot be whole.
        self._needed = HEADER_BYTES

    def feed(self, data: bytes) -> list[bytes]:
        """The messages that are whole now; FrameFault when one is larger than it may be."""
        if self._held:
            self._pieces.append(data)
            self._held += len(data)
            if self._held < self._needed:
                return []
            data = b"".join(self._pieces)
            self._pieces, self._held = [], 0
        found: list[bytes] = []
        at, end = 0, len(data)
        self._needed = HEADER_BYTES
        while end - at >= HEADER_BYTES:
            start = at + HEADER_BYTES
            size = int.from_bytes(data[at:start], "little")
            if size > self._most:
                raise FrameFault(f"a message of {size} bytes; at most {self._most} may come")
            if start + size > end:
                self._needed = HEADER_BYTES + size
                break
            at = start + size
            found.append(data[start:at])
        if at < end:
            self._pieces = [data[at:]]
            self._held = end - at
        return found
