"""Reading the rated reviews."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from worker.models.dataset import of_split, read_reviews, split_of


def test_lines_become_reviews_with_labels(tmp_path: Path) -> None:
    file = tmp_path / "rated.txt"
    file.write_bytes(
        b"1\t2.5\t A fine film. \r\n"
        b"2\t0\tNeither here nor there.\r\n"
        b"3\t-1.25\tDull\x85and\xe2\x80\xa8long.\r\n".replace(b"\x85", b" ")
        + b"4\t3\tA fine film.\r\n"
        + b"\r\n"
    )
    reviews = read_reviews(file)
    assert [(r.text, r.mean, r.label) for r in reviews] == [
        ("A fine film.", 2.5, 1),
        ("Dull and\u2028long.", -1.25, 0),
    ]


def test_a_line_of_another_form_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "rated.txt"
    file.write_text("1\t2.5\n")
    with pytest.raises(ValueError, match="got 2 fields"):
        read_reviews(file)


def test_splits_follow_the_hash() -> None:
    for text in ("a", "b", "c", "d", "e", "f", "g", "h"):
        tenth = int(hashlib.sha256(text.encode()).hexdigest(), 16) % 10
        expected = ["test", "test", "validation", *["train"] * 7][tenth]
        assert split_of(text) == expected


def test_a_split_keeps_its_order(tmp_path: Path) -> None:
    file = tmp_path / "rated.txt"
    file.write_text("".join(f"{i}\t1\ttext {i}\n" for i in range(50)))
    reviews = read_reviews(file)
    parts = [of_split(reviews, split) for split in ("test", "validation", "train")]
    assert sum(map(len, parts)) == 50
    for part in parts:
        numbers = [int(review.text.split()[1]) for review in part]
        assert numbers == sorted(numbers)
