"""Counts and distributions of measures as readings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

from controlplane.histogram import Histogram
from controlplane.metrics import families as f
from controlplane.policy.ladder import Ladder
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


def overload(model: str, ladder: Ladder) -> Iterator[Reading]:
    """Where a model's overload ladder stands, and what it has done."""
    yield Reading(f.OVERLOAD, (model,), int(ladder.rung))
    yield Reading(f.OVERLOAD_MOVES, (model,), ladder.changes)
    yield Reading(f.STRAIN, (model,), max(0.0, ladder.strain))
    effects = {
        "stopped": ladder.stopped,
        "cut": ladder.cut,
        "deferred": ladder.kept_out,
        "protected": ladder.protected,
    }
    for effect, count in effects.items():
        yield Reading(f.OVERLOAD_EFFECTS, (model, effect), count)
