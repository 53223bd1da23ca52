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
_BUSY = 1.5

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
    return Timeline(*(tuple(np.sum(rows, axis=0).tolist()) for rows in _columns(parts)))


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
class Shares:
    """Shares of what was offered in a part of a run; 1 where nothing was.

    `on_time` counts answers on time, `accurate_goodput` sums the qualities of those.
    """

    on_time: float
    accurate_goodput: float


@dataclass(frozen=True, slots=True)
class Recovery:
    """What a disturbance did.

    `before` is from the warm-up's end to the disturbance, `during` from its begin to its end (five
    seconds for one without length), `after` from there to the run's end, `lowest` the share on
    time in the worst second after its begin. `recovery_s` is the time from its begin until the
    share on time over a second is back, 0 when it never left, None when the run ended first.
    """

    before: Shares
    during: Shares
    after: Shares
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
    places = np.arange(len(line.offered))
    before = _shares(line, (places >= first) & (places < begin))
    share = rolling_share(line.on_time, line.offered)
    count = np.maximum(1.0, rolling(line.offered))
    usual = before.on_time
    allowed = np.maximum(_TOLERANCE, 2.0 * np.sqrt(usual * (1.0 - usual) / count))
    down = share < usual - allowed
    after = np.flatnonzero(down[begin:]) + begin
    struck = len(after) > 0 and int(after[0]) <= end + _WINDOW
    lowest = share[begin:]
    return Recovery(
        before=before,
        during=_shares(line, (places >= begin) & (places < end)),
        after=_shares(line, places >= end),
        lowest=float(np.nanmin(lowest)) if np.isfinite(lowest).any() else usual,
        recovery_s=_back(down, int(after[0]), begin_s) if struck else 0.0,
    )


def _back(down: NDArray[np.bool_], first: int, begin_s: float) -> float | None:
    for place in range(first + 1, len(down) - _WINDOW):
        if not down[place : place + _WINDOW + 1].any():
            return place * BIN_S + 1.0 - begin_s
    return None


@dataclass(frozen=True, slots=True)
class Bursts:
    """What bursts did: `busy` is of the requests due in them, `after` of those in the second
    after each, `quiet` of the others.
    """

    busy: Shares
    after: Shares
    quiet: Shares


def bursts(lines: Sequence[Timeline], warmup_s: float) -> Bursts:
    """Tells bursts from the rest by what was offered, in each run by itself, after its warm-up.

    A bin is busy with more than 1.5 times the mean: halfway between the rates of the phases.
    """
    first = math.ceil(warmup_s / BIN_S)
    whole = Timeline(*(tuple(np.concatenate(rows)) for rows in _columns(lines)))
    busy, after, inside = [], [], []
    for line in lines:
        offered = np.array(line.offered)
        high = offered > _BUSY * offered.mean()
        lately = np.convolve(high, np.ones(_WINDOW + 1))[: len(high)] > 0
        busy.append(high)
        after.append(lately & ~high)
        inside.append(np.arange(len(high)) >= first)
    counted = np.concatenate(inside)
    high, behind = np.concatenate(busy) & counted, np.concatenate(after) & counted
    return Bursts(
        busy=_shares(whole, high),
        after=_shares(whole, behind),
        quiet=_shares(whole, counted & ~high & ~behind),
    )


def _columns(lines: Sequence[Timeline]) -> list[list[tuple[float, ...]]]:
    return [[getattr(line, name) for line in lines] for name in ("offered", "on_time", "worth")]


def _shares(line: Timeline, chosen: NDArray[np.bool_]) -> Shares:
    offered = float(np.array(line.offered)[chosen].sum())
    if not offered:
        return Shares(1.0, 1.0)
    on_time, worth = (float(np.array(row)[chosen].sum()) for row in (line.on_time, line.worth))
    return Shares(on_time / offered, worth / offered)
