"""On-time shares over the time of a run, and how long a disturbance is felt."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

BIN_S = 0.25
_WINDOW = round(1.0 / BIN_S)
_TOLERANCE = 0.02

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Timeline:
    """Requests by due time, in bins of a quarter of a second from the start of the run.

    `offered` and `on_time` are counts, `worth` the sum of the answering variants' qualities
    over on-time answers.
    """

    offered: tuple[float, ...]
    on_time: tuple[float, ...]
    worth: tuple[float, ...]

    def as_point(self) -> dict[str, list[float]]:
        """JSON values; `from_point` reads them."""
        return {
            "offered": list(self.offered),
            "on_time": list(self.on_time),
            "worth": [round(value, 4) for value in self.worth],
        }

    @staticmethod
    def from_point(point: Mapping[str, Any]) -> Timeline:
        """Reads what `as_point` wrote."""
        return Timeline(*(tuple(point[name]) for name in ("offered", "on_time", "worth")))


def timeline(
    due_ns: NDArray[np.int64], on_time: NDArray[np.bool_], worth: Floats, span_s: float
) -> Timeline:
    """The timeline of a run from one row a request; `worth` counts where it was on time."""
    edges = np.arange(math.ceil(span_s / BIN_S) + 1) * BIN_S
    due_s = due_ns / 1e9

    def counts(weights: Floats | NDArray[np.bool_] | None) -> tuple[float, ...]:
        return tuple(np.histogram(due_s, edges, weights=weights)[0].astype(float).tolist())

    return Timeline(
        counts(None), counts(on_time.astype(float)), counts(np.where(on_time, worth, 0.0))
    )


def summed(parts: Sequence[Timeline]) -> Timeline:
    """All seeds' requests in one timeline, so that a second holds more of them."""
    columns = ([getattr(part, name) for part in parts] for name in ("offered", "on_time", "worth"))
    return Timeline(*(tuple(np.sum(rows, axis=0).tolist()) for rows in columns))


def rolling(counts: Sequence[float]) -> Floats:
    """Sums over the second that begins with each bin; the last second is the last value."""
    sums: Floats = np.convolve(np.array(counts, float), np.ones(_WINDOW), mode="valid")
    return sums


def rolling_share(part: Sequence[float], whole: Sequence[float]) -> Floats:
    """Shares over the second that begins with each bin; nan where nothing was offered."""
    below = rolling(whole)
    shares = np.full(len(below), np.nan)
    np.divide(rolling(part), below, out=shares, where=below > 0)
    return shares


@dataclass(frozen=True, slots=True)
class Recovery:
    """What a disturbance did to the on-time share.

    `before` is the share from the warm-up's end to the disturbance, `during` that from its
    begin to its end (five seconds for one without length), `lowest` the worst second after its
    begin. `recovery_s` is the time from its begin until the share over a second is back, 0
    when it never left, None when the run ended first.
    """

    before: float
    during: float
    lowest: float
    recovery_s: float | None


def recovery(line: Timeline, warmup_s: float, begin_s: float, end_s: float) -> Recovery:
    """Reads the recovery off a timeline.

    The share is down when a second's share is below `before` by more than 0.02 and by more
    than two of its standard errors, and back with the first second after such a one which is
    not, and which no other such second follows within a second.
    """
    first, begin = math.ceil(warmup_s / BIN_S), math.ceil(begin_s / BIN_S)
    end = math.ceil(max(end_s, begin_s + 5.0 if end_s <= begin_s else end_s) / BIN_S)
    before = _share(line, first, begin)
    share = rolling_share(line.on_time, line.offered)
    count = np.maximum(1.0, rolling(line.offered))
    allowed = np.maximum(_TOLERANCE, 2.0 * np.sqrt(before * (1.0 - before) / count))
    down = share < before - allowed
    after = np.flatnonzero(down[begin:]) + begin
    lowest = share[begin:]
    return Recovery(
        before=before,
        during=_share(line, begin, end),
        lowest=float(np.nanmin(lowest)) if np.isfinite(lowest).any() else before,
        recovery_s=0.0 if not len(after) else _back(down, int(after[0]), begin_s),
    )


def _back(down: NDArray[np.bool_], first: int, begin_s: float) -> float | None:
    for place in range(first + 1, len(down) - _WINDOW):
        if not down[place : place + _WINDOW + 1].any():
            return place * BIN_S + 1.0 - begin_s
    return None


def _share(line: Timeline, first: int, last: int) -> float:
    offered = sum(line.offered[first:last])
    return sum(line.on_time[first:last]) / offered if offered else 1.0
