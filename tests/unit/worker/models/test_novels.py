"""The reader of R databases, on entries made here."""

from __future__ import annotations

import struct
import zlib

import pytest

from worker.models.novels import read_database


def strings(*lines: str, version: int = 3) -> bytes:
    head = b"X\n" + struct.pack(">iii", version, 0x40200, 0x30500)
    if version == 3:
        head += struct.pack(">i", 5) + b"UTF-8"
    head += struct.pack(">ii", 16, len(lines))
    for line in lines:
        raw = line.encode()
        head += struct.pack(">ii", 0x40009, len(raw)) + raw
    return head


def entry(content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + zlib.compress(content)


def test_every_entry_is_a_text_of_its_lines() -> None:
    data = entry(strings("EMMA", "", "handsome, clever – and rich")) + entry(
        strings("Persuasion", version=2)
    )
    assert read_database(data) == ["EMMA\n\nhandsome, clever – and rich", "Persuasion"]


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (struct.pack(">I", 4) + b"none", "zlib stream at byte 0"),
        (struct.pack(">I", 9) + zlib.compress(b"four"), "expected 9 bytes"),
        (entry(b"X\n" + struct.pack(">iii", 2, 0, 0) + struct.pack(">ii", 19, 1)), "character"),
        (entry(strings("whole")[:-2]), "whole strings"),
    ],
)
def test_anything_else_is_refused(data: bytes, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        read_database(data)
