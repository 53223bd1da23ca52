"""What cascades are worth offline: foretold against realised gains, and accuracy against cost.

Everything is computed from the answers that `orchid models evaluate` recorded of all variants:
calibrations, gains and thresholds come from the items to fit on, what is reported from the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.profile import candidates_of
from bench.report import HostFacts, Report, make_report
from controlplane.policy.envelope import envelope, height
from controlplane.policy.profiles import VariantTable
from worker.models.calibration import Calibration, Escalation
from worker.models.confidence import Fit, calibration_error, error_by_chance
from worker.models.manifest import Manifest
from worker.models.populations import FITTING_SUFFIX
from worker.models.recorded import Recorded, read_recorded, recorded_path
from worker.profile_file import ProfileFile

Floats = NDArray[np.float64]
# Mean costs and accuracies of the best mixes, by rising cost.
Hull = list[tuple[float, float]]
# Shares of the items that are escalated, in the summary and on the curves.
SHARES = (0.1, 0.2, 0.3, 0.4, 0.5)
_CURVE = tuple(step / 20 for step in range(21))
_BINS = 10
# The mean distance of a normal deviate from its mean, in standard deviations.
_MEAN_DEVIATION = 0.7979


@dataclass(frozen=True, slots=True)
class Stage:
    """One variant on the frontier, on the N test items and on those that were fitted on.

    `right` and `costs_us` are of the test items; `fitted` and `tested` are its confidences.
    """

    name: str
    right: NDArray[np.bool_]
    costs_us: Floats
    calibration: Calibration
    fitted: Floats
    tested: Floats


@dataclass(frozen=True, slots=True)
class Pair:
    """A first and a second stage; without an escalation the evidence does not support them."""

    first: Stage
    second: Stage
    escalation: Escalation | None
    refused: str = ""

    @property
    def gained(self) -> Floats:
        """What the second stage gains on each test item: 1, 0 or -1."""
        return self.second.right.astype(np.float64) - self.first.right

    def at(self, share: float) -> tuple[float, float, float]:
        """Share escalated, mean cost (us) and accuracy when about ``share`` are escalated.

        The threshold is that share's quantile of the confidences on the items to fit on.
        """
        threshold = np.quantile(self.first.fitted, share) if share < 1.0 else np.inf
        more = self.first.tested < threshold if share > 0.0 else np.zeros(len(self.gained), bool)
        cost = float(self.first.costs_us.mean() + (self.second.costs_us * more).mean())
        right = float(np.where(more, self.second.right, self.first.right).mean())
        return float(more.mean()), cost, right


def run_cascade(
    folder: Path,
    manifest: Manifest,
    file: ProfileFile,
    population: str,
    *,
    resolution: float = 0.002,
    pair: tuple[str, str] | None = None,
    host: HostFacts | None = None,
) -> Report:
    """Return the report of the variants on the frontier of a measured profile.

    Costs are in multiples of the most accurate one's. The summary is of ``pair``, by default the
    cheapest and the most accurate. Raises CheckpointError without recorded answers, ValueError
    when fewer than two variants have evidence or the pair is not among them.
    """
    fitting = read_recorded(recorded_path(folder, population + FITTING_SUFFIX))
    testing = read_recorded(recorded_path(folder, population))
    table = VariantTable.build(candidates_of(manifest, file.variants), resolution=resolution)
    names = [c.name for c in table.candidates if c.name not in table.dominated]
    stages = [
        stage
        for name in names
        if (stage := _stage(manifest, file, name, population, fitting, testing)) is not None
    ]
    if len(stages) < 2:
        raise ValueError(
            f"expected confidence evidence of two variants of {', '.join(names)} on {population}, "
            f"got it of {len(stages)}: `orchid models evaluate {manifest.name}` measures it"
        )
    pairs = [
        _pair(manifest, first, second, population) for second, first in combinations(stages, 2)
    ]
    wanted = pair or (stages[-1].name, stages[0].name)
    chosen = next((p for p in pairs if (p.first.name, p.second.name) == wanted), None)
    if chosen is None:
        known = ", ".join(f"{p.first.name} and {p.second.name}" for p in pairs)
        raise ValueError(f"expected a pair of {known}; got {wanted[0]} and {wanted[1]}")
    unit = float(stages[0].costs_us.mean())
    fixed = envelope([(float(s.costs_us.mean()) / unit, float(s.right.mean())) for s in stages])
    points = [_stage_point(stage, unit, testing) for stage in stages]
    for each in pairs:
        points += [*_decile_points(each), *_curve_points(each, unit, fixed)]
    return make_report(
        "cascade",
        host=host,
        settings={
            "model": manifest.name,
            "population": population,
            "digest": manifest.digest,
            "machine": asdict(file.machine),
            "unit": {"variant": stages[0].name, "mean_us": unit},
            "pair": list(wanted),
            "fitted_on": len(fitting.labels),
            "tested_on": len(testing.labels),
        },
        points=points,
        summary=_summary(stages, chosen, points, unit, fixed),
    )


def _stage(
    manifest: Manifest,
    file: ProfileFile,
    name: str,
    population: str,
    fitting: Recorded,
    testing: Recorded,
) -> Stage | None:
    variant = manifest.variant(name)
    calibration = None if variant is None else variant.calibration(population)
    if calibration is None or name not in fitting.logits or name not in testing.logits:
        return None
    profile = file.variants[name].profile
    fit = Fit(calibration.temperature, calibration.beta)
    return Stage(
        name,
        testing.logits[name].argmax(axis=1) == testing.labels,
        np.array([profile.predict_us([length]) for length in testing.tokens.tolist()]),
        calibration,
        fit.confidences(fitting.logits[name]),
        fit.confidences(testing.logits[name]),
    )


def _pair(manifest: Manifest, first: Stage, second: Stage, population: str) -> Pair:
    variant = manifest.variant(first.name)
    escalations: Sequence[Escalation] = () if variant is None else variant.escalations
    for item in escalations:
        if (item.population, item.to) == (population, second.name):
            return Pair(first, second, item if item.gains else None, item.refused)
    return Pair(first, second, None, f"{second.name} is not surely more accurate")


def _stage_point(stage: Stage, unit: float, testing: Recorded) -> dict[str, Any]:
    plain = Fit(1.0).confidences(testing.logits[stage.name])
    return {
        "kind": "variant",
        "variant": stage.name,
        "cost": float(stage.costs_us.mean()) / unit,
        "accuracy": float(stage.right.mean()),
        "temperature": stage.calibration.temperature,
        "beta": list(stage.calibration.beta),
        "error": calibration_error(stage.tested, stage.right),
        "error_before": calibration_error(plain, stage.right),
        "error_by_chance": error_by_chance(stage.tested, 0.5),
        "error_at_most": error_by_chance(stage.tested, 0.95),
        "reliability": list(_reliability(stage.tested, stage.right)),
    }


def _reliability(confidence: Floats, right: NDArray[np.bool_]) -> Iterator[dict[str, float]]:
    """Mean confidence and share right of ten parts of as many items."""
    for part in np.array_split(np.argsort(confidence, kind="stable"), _BINS):
        yield {
            "confidence": float(confidence[part].mean()),
            "right": float(right[part].mean()),
            "n": float(len(part)),
        }


def _decile_points(pair: Pair) -> Iterator[dict[str, Any]]:
    """Foretold and realised gain of each tenth of the test items, the least sure first."""
    names = {"first": pair.first.name, "to": pair.second.name}
    if pair.escalation is None:
        yield {"kind": "refused", **names, "reason": pair.refused}
        return
    gained, sure = pair.gained, pair.first.tested
    foretold = np.array([pair.escalation.gain(value) for value in sure.tolist()])
    order = np.argsort(sure, kind="stable")
    for number, part in enumerate(np.array_split(order, _BINS)):
        yield {
            "kind": "decile",
            **names,
            "decile": number,
            "confidence": float(sure[part].mean()),
            "foretold": float(foretold[part].mean()),
            "realised": float(gained[part].mean()),
            "standard_error": float(gained[part].std() / np.sqrt(len(part))),
            "n": len(part),
        }


def _curve_points(pair: Pair, unit: float, fixed: Hull) -> Iterator[dict[str, Any]]:
    for share in _CURVE:
        escalated, cost_us, right = pair.at(share)
        yield {
            "kind": "frontier",
            "first": pair.first.name,
            "to": pair.second.name,
            "wanted": share,
            "escalated": escalated,
            "cost": cost_us / unit,
            "accuracy": right,
            "fixed": height(fixed, cost_us / unit),
        }


def _summary(
    stages: Sequence[Stage],
    chosen: Pair,
    points: Sequence[Mapping[str, Any]],
    unit: float,
    fixed: Hull,
) -> dict[str, float]:
    summary: dict[str, float] = {}
    for share in SHARES:
        escalated, cost_us, right = chosen.at(share)
        name = f"cascade@{share:g}"
        summary[f"{name}.cost"] = cost_us / unit
        summary[f"{name}.accuracy"] = right
        summary[f"{name}.fixed"] = height(fixed, cost_us / unit)
        summary[f"{name}.escalated"] = escalated
    curve = [point for point in points if point["kind"] == "frontier"]
    best = envelope([(p["cost"], p["accuracy"]) for p in curve])
    ahead = [(height(best, c) - height(fixed, c), c) for c in np.linspace(best[0][0], 1.0, 200)]
    most, where = max(ahead)
    summary |= {"most_ahead": most, "most_ahead_at_cost": float(where)}
    firsts = [point for point in points if point["kind"] == "variant"][1:]
    summary["largest_error"] = max(point["error"] for point in firsts)
    for point in firsts:
        summary[f"{point['variant']}.error"] = point["error"]
    deciles = [
        point
        for point in points
        if point["kind"] == "decile"
        and (point["first"], point["to"]) == (chosen.first.name, chosen.second.name)
    ]
    if deciles:
        apart = [abs(point["foretold"] - point["realised"]) for point in deciles]
        chance = [_MEAN_DEVIATION * point["standard_error"] for point in deciles]
        summary["decile_apart"] = float(np.mean(apart))
        summary["decile_apart_by_chance"] = float(np.mean(chance))
    return summary
