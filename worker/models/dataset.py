"""The labelled movie reviews on which the default model is measured.

The texts are Rotten-Tomatoes-like sentences rated from -4 to 4 by 15 to 29 people each
(Hutto and Gilbert 2014); they are fetched at build time and never part of this project.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Split = Literal["test", "validation", "train"]

POPULATION = "movie-reviews"
CLEAR_MEAN = 1.0
TEST_ITEMS = 2133


@dataclass(frozen=True, slots=True)
class Review:
    """One text with the mean of its ratings, its label (1 is positive) and its split."""

    text: str
    mean: float
    label: int
    split: Split


def read_reviews(path: Path) -> tuple[Review, ...]:
    """Read the ratings file: id, mean rating and text, separated by tabs.

    Texts without a lean (mean 0) and repeated texts are left out. Raises ValueError on a line
    of another form.
    """
    found: dict[str, Review] = {}
    for line in path.read_bytes().decode("utf-8").split("\n"):
        if not line.strip():
            continue
        fields = line.removesuffix("\r").split("\t", 2)
        if len(fields) != 3:
            raise ValueError(f"expected id, mean and text in {path.name}, got {len(fields)} fields")
        mean, text = float(fields[1]), fields[2].strip()
        if mean != 0 and text not in found:
            found[text] = Review(text, mean, int(mean > 0), split_of(text))
    return tuple(found.values())


def split_of(text: str) -> Split:
    """Return the split of a text, by its hash: 2 tenths test, 1 validation, 7 train."""
    tenth = int(hashlib.sha256(text.encode()).hexdigest(), 16) % 10
    return "test" if tenth < 2 else "validation" if tenth == 2 else "train"


def of_split(reviews: Sequence[Review], split: Split) -> tuple[Review, ...]:
    """Return the reviews of one split in their order."""
    return tuple(review for review in reviews if review.split == split)
