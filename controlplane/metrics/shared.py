"""Counts and distributions of measures as readings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

from controlplane.histogram import Histogram
from protos.measures import Family, Reading, buckets_of

Key = TypeVar("Key", bound=tuple[str, ...])


def counts(
    family: Family, kept: Mapping[Key, int], expected: Iterable[Key] = ()
) -> Iterator[Reading]:
    """The counts, and zeros for what is expected and has not happened yet.

    A counter that is not there before it is 1 has no increase that a rule could see.
    """
    for key in expected:
        if key not in kept:
            yield Reading(family, key, 0)
    for key, count in kept.items():
        yield Reading(family, key, count)


def distributions(family: Family, kept: Mapping[Key, Histogram]) -> Iterator[Reading]:
    """Copies of the distributions."""
    for key, histogram in kept.items():
        yield Reading(family, key, buckets_of(histogram))
