"""What a process measures, as plain values: families of metrics and readings of them.

Both services hand readings to `protos.exposition`; nothing here needs a metrics library.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol, TypeAlias

NANOSECONDS = 1_000_000_000
# Label value of what a caller left open, and of what is not told apart any more.
NONE = "none"
OTHER = "other"

_SUFFIXES = {"s": "_seconds", "By": "_bytes"}


class Kind(Enum):
    """How a value behaves: it only grows, it goes up and down, or it is a distribution."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Family:
    """One metric: its OpenTelemetry name and unit, its labels, and what it says.

    Readings are in integers of which `per` make one of the unit, such as nanoseconds.
    """

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    unit: str = ""
    per: int = 1

    @property
    def exposed(self) -> str:
        """The name in a Prometheus scrape; histograms have `_bucket`, `_sum`, `_count` there."""
        name, suffix = self.name.replace(".", "_"), _SUFFIXES.get(self.unit, "")
        if not name.endswith(suffix):
            name += suffix
        return f"{name}_total" if self.kind is Kind.COUNTER else name


class Buckets(NamedTuple):
    """A distribution: upper bounds, counts (one more, for what is above), and the sum."""

    bounds: Sequence[int]
    counts: Sequence[int]
    sum: int


class Reading(NamedTuple):
    """One value of a family; `labels` are parallel to the family's."""

    family: Family
    labels: tuple[str, ...]
    value: float | Buckets


Readings: TypeAlias = list[Reading]


class Distribution(Protocol):
    """What keeps a distribution, as the services' `Histogram`."""

    @property
    def bounds(self) -> Sequence[int]: ...

    @property
    def counts(self) -> Sequence[int]: ...

    @property
    def sum(self) -> int: ...


def buckets_of(kept: Distribution) -> Buckets:
    """A copy that no later observation changes; `bounds` are shared."""
    return Buckets(kept.bounds, tuple(kept.counts), kept.sum)
