"""What a live run tells the simulator: how services spread, and what messages take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
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


@dataclass(frozen=True, slots=True)
class Calibration:
    """`ratios` are quantiles of measured over nominal service by variant name, at evenly
    spaced probabilities; "" is for variants that ran less than 40 times. `trip_ns` is the
    median time of an answer inside the server that was neither queue nor run, `front_ns` that
    between the due time and the answer which the server does not account for.
    """

    ratios: Mapping[str, tuple[float, ...]]
    trip_ns: int
    front_ns: int
    runs: int

    def noise(self) -> Noise:
        """The measured spread, for the simulated services."""
        return Noise(measured=self.ratios)

    def as_point(self) -> dict[str, Any]:
        """JSON values; `from_point` reads them."""
        rounded = {name: [round(q, 4) for q in row] for name, row in self.ratios.items()}
        return {**asdict(self), "ratios": rounded}

    @staticmethod
    def from_point(point: Mapping[str, Any]) -> Calibration:
        """Reads what `as_point` wrote."""
        ratios = {name: tuple(row) for name, row in point["ratios"].items()}
        return Calibration(ratios, point["trip_ns"], point["front_ns"], point["runs"])


def calibrate(
    records: Records, workload: Workload, model: SimModel, *, until_ns: int | None = None
) -> Calibration | None:
    """Takes the answers of an open loop's window that ran alone; None when there is none.

    Of what was due until `until_ns` only, when that is given. A run that was ended at its
    deadline tells no service.
    """
    alone = records.window_rows("open") & (records.code == OK)
    if until_ns is not None:
        alone &= records.due_ns < until_ns
    alone &= (records.execute_ns > 0) & (records.batch == 1) & (records.variant >= 0)
    if not alone.any() or not workload.tokens:
        return None
    tokens = np.array(workload.tokens)[records.text[alone]]
    variant, execute = records.variant[alone], records.execute_ns[alone]
    ratios: dict[str, NDArray[np.float64]] = {}
    for number, name in enumerate(records.variants):
        candidate = next((c for c in model.candidates if c.name == name), None)
        mine = variant == number
        if candidate is not None and mine.any():
            profile = candidate.profile
            nominal = [profile.predict(Shape.of_lengths([n])) for n in tokens[mine].tolist()]
            ratios[name] = execute[mine] / np.array(nominal)
    if not ratios:
        return None
    quantiles = {name: _quantiles(row) for name, row in ratios.items() if len(row) >= _FEWEST}
    quantiles[_EVERYBODY] = _quantiles(np.concatenate(list(ratios.values())))
    inside = records.total_ns[alone] - records.queue_ns[alone] - execute
    front = records.done_ns[alone] - records.due_ns[alone] - records.total_ns[alone]
    return Calibration(
        ratios=quantiles,
        trip_ns=max(0, int(np.median(inside))),
        front_ns=max(0, int(np.median(front))),
        runs=int(alone.sum()),
    )


def pooled(parts: Sequence[Calibration]) -> Calibration | None:
    """One calibration from those of several runs, weighted by their runs; None of none.

    Quantiles are averaged at equal probabilities.
    """
    if not parts:
        return None
    names = sorted({name for part in parts for name in part.ratios})
    ratios = {}
    for name in names:
        having = [part for part in parts if name in part.ratios]
        rows = np.array([part.ratios[name] for part in having])
        mean = np.average(rows, axis=0, weights=[part.runs for part in having])
        ratios[name] = tuple(float(q) for q in mean)
    weights = [part.runs for part in parts]
    return Calibration(
        ratios=ratios,
        trip_ns=int(np.average([part.trip_ns for part in parts], weights=weights)),
        front_ns=int(np.average([part.front_ns for part in parts], weights=weights)),
        runs=sum(weights),
    )


def _quantiles(ratios: NDArray[np.float64]) -> tuple[float, ...]:
    places = np.linspace(0.0, 1.0, _QUANTILES)
    return tuple(float(q) for q in np.quantile(ratios, places))
