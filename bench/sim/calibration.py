"""What a live run tells the simulator: how services spread, and what messages take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.load.plan import Workload
from bench.load.record import OK, Records
from bench.sim.model import SimModel
from bench.sim.service import Noise
from controlplane.policy.records import Shape

_QUANTILES = 41
_FEWEST = 40
_EVERYBODY = ""
_LAGS = 12
_MEMORIES_S = (0.02, 0.04, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0)

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Calibration:
    """The measured spread of services and messages of one or several live runs.

    `ratios` are quantiles of measured over nominal service by variant name, at evenly spaced
    probabilities; "" is for variants that ran less than 40 times. Runs that are near in time
    are slow together: the correlation of their ranks is `shared * exp(-distance / memory_s)`.
    `trip_ns` is the median time of an answer inside the server that was neither queue nor run.
    `lag_ns` is how late the driver sent (median), `hops_ns` are quantiles of what requests and
    answers took between driver and server. `runs` is how many answers this rests on.
    """

    ratios: Mapping[str, tuple[float, ...]]
    shared: float
    memory_s: float
    trip_ns: int
    lag_ns: int
    hops_ns: tuple[float, ...]
    runs: int

    def noise(self) -> Noise:
        """The measured spread, for the simulated services."""
        return Noise(measured=self.ratios)

    def luck(self, generator: np.random.Generator, arrived_ns: NDArray[np.int64]) -> Floats:
        """Standard normal numbers for requests that arrive then, correlated as measured."""
        own = generator.standard_normal(len(arrived_ns))
        steps = generator.standard_normal(len(arrived_ns))
        keep = np.exp(-np.diff(arrived_ns, prepend=arrived_ns[:1]) / 1e9 / self.memory_s)
        common, state = np.empty(len(arrived_ns)), 0.0
        for row, (kept, step) in enumerate(zip(keep.tolist(), steps.tolist(), strict=True)):
            state = step if row == 0 else kept * state + (1.0 - kept * kept) ** 0.5 * step
            common[row] = state
        mixed: Floats = self.shared**0.5 * common + (1.0 - self.shared) ** 0.5 * own
        return mixed

    def hops(self, generator: np.random.Generator, count: int) -> NDArray[np.int64]:
        """What so many requests lose between driver and server, in ns."""
        places = np.linspace(0.0, 1.0, len(self.hops_ns))
        return np.interp(generator.random(count), places, self.hops_ns).astype(np.int64)

    @property
    def front_ns(self) -> int:
        """Median of what a caller loses outside the server."""
        return self.lag_ns + int(np.median(self.hops_ns))

    def as_point(self) -> dict[str, Any]:
        """JSON values; `from_point` reads them."""
        rounded = {name: [round(q, 4) for q in row] for name, row in self.ratios.items()}
        return {**asdict(self), "ratios": rounded, "hops_ns": [round(q) for q in self.hops_ns]}

    @staticmethod
    def from_point(point: Mapping[str, Any]) -> Calibration:
        """Reads what `as_point` wrote."""
        ratios = {name: tuple(row) for name, row in point["ratios"].items()}
        return Calibration(**{**point, "ratios": ratios, "hops_ns": tuple(point["hops_ns"])})


def calibrate(
    records: Records, workload: Workload, model: SimModel, *, until_ns: int | None = None
) -> Calibration | None:
    """Takes the answers of an open loop's window that ran alone; None when there is none.

    Of what was due until `until_ns` only, when that is given. A run that was ended at its
    deadline tells no service, nor do the two runs of an escalated request, whose time is one sum.
    """
    alone = records.window_rows("open") & (records.code == OK)
    if until_ns is not None:
        alone &= records.due_ns < until_ns
    alone &= (records.execute_ns > 0) & (records.batch == 1) & (records.variant >= 0)
    if records.escalated is not None:
        alone &= ~records.escalated
    if not alone.any() or not workload.tokens:
        return None
    tokens = np.array(workload.tokens)[records.text[alone]]
    variant, execute = records.variant[alone], records.execute_ns[alone]
    ratios: dict[str, Floats] = {}
    ranks = np.full(len(tokens), np.nan)
    for number, name in enumerate(records.variants):
        candidate = next((c for c in model.candidates if c.name == name), None)
        mine = variant == number
        if candidate is not None and mine.any():
            profile = candidate.profile
            nominal = [profile.predict(Shape.of_lengths([n])) for n in tokens[mine].tolist()]
            ratios[name] = execute[mine] / np.array(nominal)
            ranks[mine] = _normal_scores(ratios[name])
    if not ratios:
        return None
    quantiles = {name: _quantiles(row) for name, row in ratios.items() if len(row) >= _FEWEST}
    quantiles[_EVERYBODY] = _quantiles(np.concatenate(list(ratios.values())))
    known = ~np.isnan(ranks)
    shared, memory_s = correlation(records.done_ns[alone][known] / 1e9, ranks[known])
    inside = records.total_ns[alone] - records.queue_ns[alone] - execute
    hops = records.done_ns[alone] - records.sent_ns[alone] - records.total_ns[alone]
    lag = records.sent_ns[alone] - records.due_ns[alone]
    return Calibration(
        ratios=quantiles,
        shared=shared,
        memory_s=memory_s,
        trip_ns=max(0, int(np.median(inside))),
        lag_ns=max(0, int(np.median(lag))),
        hops_ns=_quantiles(np.maximum(0, hops).astype(np.float64)),
        runs=int(alone.sum()),
    )


def correlation(at_s: Floats, scores: Floats) -> tuple[float, float]:
    """Share and memory (s) of an exponentially forgotten common part of standard scores.

    Least squares of `share * exp(-distance / memory)` to the correlations of scores that are
    1 to 12 apart in order of time, over a few memories; no share where there are too few.
    """
    order = np.argsort(at_s, kind="stable")
    at_s, scores = at_s[order], scores[order]
    if len(scores) < 4 * _LAGS:
        return 0.0, _MEMORIES_S[0]
    lags = range(1, _LAGS + 1)
    found = np.array([float(np.mean(scores[:-k] * scores[k:])) for k in lags])
    distance = np.array([float(np.mean(at_s[k:] - at_s[:-k])) for k in lags])
    best = (np.inf, 0.0, _MEMORIES_S[0])
    for memory_s in _MEMORIES_S:
        shape = np.exp(-distance / memory_s)
        share = min(1.0, max(0.0, float(shape @ found / (shape @ shape))))
        best = min(best, (float(np.sum((found - share * shape) ** 2)), share, memory_s))
    return best[1], best[2]


def pooled(parts: Sequence[Calibration]) -> Calibration | None:
    """One calibration from those of several runs, weighted by their runs; None of none.

    Quantiles are averaged at equal probabilities.
    """
    if not parts:
        return None

    def mean(values: Sequence[float], among: Sequence[Calibration] = parts) -> float:
        return float(np.average(values, weights=[part.runs for part in among]))

    ratios = {}
    for name in sorted({name for part in parts for name in part.ratios}):
        having = [part for part in parts if name in part.ratios]
        columns = zip(*(part.ratios[name] for part in having), strict=True)
        ratios[name] = tuple(mean(column, having) for column in columns)
    return Calibration(
        ratios=ratios,
        shared=mean([part.shared for part in parts]),
        memory_s=mean([part.memory_s for part in parts]),
        trip_ns=int(mean([part.trip_ns for part in parts])),
        lag_ns=int(mean([part.lag_ns for part in parts])),
        hops_ns=tuple(mean(c) for c in zip(*(part.hops_ns for part in parts), strict=True)),
        runs=sum(part.runs for part in parts),
    )


def _normal_scores(values: Floats) -> Floats:
    """Standard normal numbers of the same ranks."""
    rank = np.argsort(np.argsort(values, kind="stable"), kind="stable")
    normal = NormalDist()
    return np.array([normal.inv_cdf((r + 0.5) / len(values)) for r in rank.tolist()])


def _quantiles(values: Floats) -> tuple[float, ...]:
    places = np.linspace(0.0, 1.0, _QUANTILES)
    return tuple(float(q) for q in np.quantile(values, places))
