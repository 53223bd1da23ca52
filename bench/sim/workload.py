"""What arrives: times, sizes, deadlines and the luck of every service, as columns."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from bench.sim.arrivals import ArrivalProcess
from controlplane.policy.records import RequestClass

NS_PER_S = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Workload:
    """One row a request, in order of arrival; times in ns, sizes in tokens.

    `luck` is a standard normal number that becomes the noise of the request's service on
    whichever variant it runs, and `tail` a uniform number that says whether that service is
    one of the long ones: so every policy, and the bound, meets the same services. `reply_ns`
    is what callers lose on the way from and to the control plane: an answer that leaves it
    later than so long before the deadline is late (None: nothing is lost). `who` numbers the
    `classes` in which requests are asked (None: nobody says anything), `item` the recorded
    answers that requests stand for (None: what is answered is not played).
    """

    arrived_ns: NDArray[np.int64]
    tokens: NDArray[np.int64]
    deadline_ns: NDArray[np.int64]
    luck: NDArray[np.float64]
    tail: NDArray[np.float64]
    reply_ns: NDArray[np.int64] | None = None
    classes: tuple[RequestClass, ...] = (RequestClass(),)
    who: NDArray[np.int16] | None = None
    item: NDArray[np.int32] | None = None

    def klass(self, number: int) -> RequestClass:
        """The class of one request."""
        return self.classes[0 if self.who is None else int(self.who[number])]

    def __len__(self) -> int:
        return len(self.arrived_ns)

    def __post_init__(self) -> None:
        columns: list[NDArray[Any]] = [self.tokens, self.deadline_ns, self.luck, self.tail]
        columns += [] if self.reply_ns is None else [self.reply_ns]
        columns += [] if self.who is None else [self.who]
        columns += [] if self.item is None else [self.item]
        if any(len(column) != len(self.arrived_ns) for column in columns):
            raise ValueError("the columns of a workload must be equally long")
        if len(self) and np.any(np.diff(self.arrived_ns) < 0):
            raise ValueError("arrivals must be in order")


class Lengths(Protocol):
    """How long requests are."""

    def draw(self, generator: np.random.Generator, count: int) -> NDArray[np.int64]:
        """`count` lengths in tokens, each at least 1."""

    def mean(self) -> float:
        """The mean length in tokens."""


@dataclass(frozen=True, slots=True)
class FixedLength:
    """Every request has as many tokens."""

    tokens: int

    def draw(self, generator: np.random.Generator, count: int) -> NDArray[np.int64]:
        """`count` equal lengths."""
        return np.full(count, self.tokens, dtype=np.int64)

    def mean(self) -> float:
        """The length."""
        return float(self.tokens)


@dataclass(frozen=True, slots=True)
class SampledLengths:
    """Lengths drawn with replacement from measured ones."""

    tokens: tuple[int, ...]

    def draw(self, generator: np.random.Generator, count: int) -> NDArray[np.int64]:
        """`count` lengths."""
        return generator.choice(np.array(self.tokens, dtype=np.int64), count)

    def mean(self) -> float:
        """Mean of the measured lengths."""
        return sum(self.tokens) / len(self.tokens)


# Deciles of the lengths of sentence-long movie reviews, special tokens included.
REVIEW_LENGTHS = SampledLengths((8, 12, 16, 20, 23, 27, 30, 34, 39, 47))


@dataclass(frozen=True, slots=True)
class Deadlines:
    """`deadline_ms` times one of `factors`, each as likely."""

    deadline_ms: float
    factors: tuple[float, ...] = (1.0,)


def draw_workload(
    generator: np.random.Generator,
    arrivals: ArrivalProcess,
    lengths: Lengths,
    deadlines: Deadlines,
    span_s: float,
) -> Workload:
    """A workload over `span_s`; one state of the generator gives one workload."""
    arrived = (arrivals.times_s(generator, span_s) * NS_PER_S).astype(np.int64)
    count = len(arrived)
    tokens = lengths.draw(generator, count)
    factor = generator.choice(np.array(deadlines.factors), count)
    budget = (deadlines.deadline_ms * 1e6 * factor).astype(np.int64)
    return Workload(
        arrived_ns=arrived,
        tokens=tokens,
        deadline_ns=arrived + budget,
        luck=generator.standard_normal(count),
        tail=generator.random(count),
    )


def of_items(
    workload: Workload, generator: np.random.Generator, tokens: NDArray[np.int64]
) -> Workload:
    """The same arrivals as requests for items drawn from those with these lengths."""
    item = generator.integers(0, len(tokens), len(workload), dtype=np.int32)
    return replace(workload, item=item, tokens=tokens[item])


def together(workloads: Sequence[Workload], classes: Sequence[RequestClass]) -> Workload:
    """Several workloads at once, each asked in a class of its own; in order of arrival."""
    arrived = np.concatenate([each.arrived_ns for each in workloads])
    order = np.argsort(arrived, kind="stable")
    sizes = [len(each) for each in workloads]

    def column(name: str) -> NDArray[Any]:
        merged: NDArray[Any] = np.concatenate([getattr(each, name) for each in workloads])[order]
        return merged

    return Workload(
        arrived_ns=arrived[order],
        tokens=column("tokens"),
        deadline_ns=column("deadline_ns"),
        luck=column("luck"),
        tail=column("tail"),
        classes=tuple(classes),
        who=np.repeat(np.arange(len(workloads), dtype=np.int16), sizes)[order],
    )


# --- recorded traces -----------------------------------------------------------------

TRACE_COLUMNS = ("arrived_us", "tokens", "deadline_us")


def write_trace(path: Path, workload: Workload) -> None:
    """Write arrivals, sizes and deadlines as CSV: shapes, never texts.

    Times are whole microseconds; `deadline_us` counts from the arrival.
    """
    budget = workload.deadline_ns - workload.arrived_ns
    rows = zip(
        (workload.arrived_ns // 1000).tolist(),
        workload.tokens.tolist(),
        (budget // 1000).tolist(),
        strict=True,
    )
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(TRACE_COLUMNS)
        writer.writerows(rows)


def read_trace(path: Path, generator: np.random.Generator) -> Workload:
    """Read a trace; the luck of services is drawn, and columns after the third are not read.

    A deadline of 0 means none. Raises ValueError with the line that does not begin with
    three whole numbers, or is not in order.
    """
    arrived: list[int] = []
    tokens: list[int] = []
    budgets: list[int] = []
    with path.open(newline="") as file:
        reader = csv.reader(file)
        if tuple(next(reader, ()))[:3] != TRACE_COLUMNS:
            raise ValueError(f"{path}: the first line must begin {','.join(TRACE_COLUMNS)}")
        for number, row in enumerate(reader, 2):
            at, size, budget = _three(path, number, row)
            if arrived and at < arrived[-1]:
                raise ValueError(f"{path}:{number}: arrivals must be in order")
            arrived.append(at)
            tokens.append(size)
            budgets.append(budget)
    times = np.array(arrived, dtype=np.int64) * 1000
    return Workload(
        arrived_ns=times,
        tokens=np.array(tokens, dtype=np.int64),
        deadline_ns=times + np.array(budgets, dtype=np.int64) * 1000,
        luck=generator.standard_normal(len(times)),
        tail=generator.random(len(times)),
    )


def _three(path: Path, number: int, row: Sequence[str]) -> tuple[int, int, int]:
    try:
        at, size, budget = (int(cell) for cell in row[:3])
    except ValueError:
        raise ValueError(f"{path}:{number}: expected three whole numbers, got {row}") from None
    if at < 0 or size < 1 or budget < 0:
        raise ValueError(f"{path}:{number}: a time is negative or a size below 1")
    return at, size, budget


def retimed(workload: Workload, *, speed: float = 1.0, deadline_ms: float = 0.0) -> Workload:
    """The same requests arriving `speed` times as fast, or with another deadline (0: keep)."""
    if speed <= 0.0:
        raise ValueError(f"speed must be above 0, got {speed}")
    if deadline_ms <= 0.0 and np.any(workload.deadline_ns <= workload.arrived_ns):
        raise ValueError("the trace has requests without a deadline; give one")
    arrived = (workload.arrived_ns / speed).astype(np.int64)
    budget = workload.deadline_ns - workload.arrived_ns
    if deadline_ms > 0.0:
        budget = np.full(len(workload), int(deadline_ms * 1e6), dtype=np.int64)
    return replace(workload, arrived_ns=arrived, deadline_ns=arrived + budget)
