"""The figures that policies are compared by: of a point, over seeds, and in pairs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from bench.compare.settings import BOUND, CASCADE, REFERENCE

Point = Mapping[str, Any]

FIGURES = (
    "accurate_goodput",
    "right_share",
    "goodput",
    "on_time",
    "on_time_of_admitted",
    "accuracy",
    "quality",
    "share_most_accurate",
    "p95_ms",
    "cpu_cost",
    "escalated",
)
# Student's t at 97.5 % for 1 to 9 degrees of freedom.
_STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)


def figures_of(point: Point, best: str) -> dict[str, float]:
    """A point's figures by name, without those it does not have.

    `best` is the most accurate routed variant. A simulated point's accuracy is the mean
    quality of its answers: nobody has labels there.
    """
    latency = point.get("latency")
    p95 = point.get("p95_ms") if "p95_ms" in point else latency and latency["p95_ms"]
    found = {
        "accurate_goodput": point["accurate_goodput"],
        "right_share": point.get("right_share"),
        "goodput": point["on_time"],
        "on_time": point["on_time"],
        "on_time_of_admitted": point["on_time_of_admitted"],
        "accuracy": point["accuracy"],
        "quality": point.get("quality", point["accuracy"]),
        "share_most_accurate": point["variant_share"].get(best, 0.0),
        "p95_ms": p95,
        "cpu_cost": point.get("cpu_cost_ms", point.get("cpu_ms")),
        "escalated": point.get("escalated"),
        "achievable": point.get("achievable"),
    }
    return {name: float(value) for name, value in found.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean with its standard error (0 of one value) and its 95 % interval by Student's t."""

    mean: float
    stderr: float
    low: float
    high: float
    n: int


def estimate(values: Sequence[float]) -> Estimate:
    """The mean of independent values; one value has an interval without width."""
    mean = fmean(values)
    if len(values) < 2:
        return Estimate(mean, 0.0, mean, mean, len(values))
    stderr = stdev(values) / math.sqrt(len(values))
    half = student_t(len(values) - 1) * stderr
    return Estimate(mean, stderr, mean - half, mean + half, len(values))


def student_t(degrees: int) -> float:
    """Student's t at 97.5 %: tabled up to 9 degrees, then Cornish and Fisher's expansion."""
    if degrees <= len(_STUDENT):
        return _STUDENT[degrees - 1]
    z = 1.959964
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    return z + first / degrees + second / degrees**2


@dataclass(frozen=True, slots=True)
class Cell:
    """One policy at one load: every figure over the seeds.

    `ahead` is the reference policy's accurate goodput less this one's, in pairs of one seed;
    None for the reference itself and where no seed has both.
    """

    policy: str
    load: float
    figures: Mapping[str, Estimate]
    variant_share: Mapping[str, float]
    ahead: Estimate | None


def cells(points: Sequence[Point], best: str) -> list[Cell]:
    """All policies and loads of a comparison, by load, policies in order of appearance."""
    policies = list(dict.fromkeys(point["policy"] for point in points))
    loads = sorted({point["load_factor"] for point in points})
    found = []
    for load in loads:
        reference = _by_seed(points, REFERENCE, load)
        for policy in policies:
            mine = _by_seed(points, policy, load)
            if mine:
                found.append(_cell(policy, load, mine, reference, best))
    return found


def _by_seed(points: Sequence[Point], policy: str, load: float) -> dict[int, Point]:
    return {p["seed"]: p for p in points if p["policy"] == policy and p["load_factor"] == load}


def _cell(
    policy: str, load: float, mine: dict[int, Point], reference: dict[int, Point], best: str
) -> Cell:
    rows = {seed: figures_of(point, best) for seed, point in mine.items()}
    shared = set.intersection(*(set(row) for row in rows.values()))
    differences = [
        figures_of(reference[seed], best)["accurate_goodput"] - row["accurate_goodput"]
        for seed, row in rows.items()
        if seed in reference and "accurate_goodput" in row
    ]
    names = sorted({name for point in mine.values() for name in point["variant_share"]})
    return Cell(
        policy=policy,
        load=load,
        figures={name: estimate([row[name] for row in rows.values()]) for name in sorted(shared)},
        variant_share={
            name: fmean([p["variant_share"].get(name, 0.0) for p in mine.values()])
            for name in names
        },
        ahead=estimate(differences) if differences and policy != REFERENCE else None,
    )


def summary_of(found: Sequence[Cell]) -> dict[str, float]:
    """The flat figures `<policy>@<load>.<figure>`, means over the seeds.

    `price_ahead` and its `_low` and `_high` are the paired difference and its interval.
    `sim_over_live@<load>` and `live_over_bound@<load>` are ratios of accurate goodput,
    `cascade_ahead_of_bound@<load>` is what cascades are ahead of the bound of fixed variants.
    """
    summary: dict[str, float] = {}
    goodput: dict[tuple[str, float], float] = {}
    for cell in found:
        at = f"{cell.policy}@{cell.load:g}"
        for name, value in cell.figures.items():
            summary[f"{at}.{name}"] = value.mean
        accurate = cell.figures.get("accurate_goodput")
        if accurate is not None:
            goodput[cell.policy, cell.load] = accurate.mean
            summary[f"{at}.accurate_goodput_stderr"] = accurate.stderr
        if cell.ahead is not None:
            summary[f"{at}.price_ahead"] = cell.ahead.mean
            if cell.ahead.n > 1:
                summary[f"{at}.price_ahead_low"] = cell.ahead.low
                summary[f"{at}.price_ahead_high"] = cell.ahead.high
    for (policy, load), live in goodput.items():
        simulated, bound = goodput.get((f"sim-{policy}", load)), goodput.get((BOUND, load))
        if simulated is not None and live > 0:
            key = "sim_over_live" if policy == REFERENCE else f"sim_over_live.{policy}"
            summary[f"{key}@{load:g}"] = simulated / live
        if policy == REFERENCE and bound:
            summary[f"live_over_bound@{load:g}"] = live / bound
        if policy == CASCADE and bound:
            summary[f"cascade_ahead_of_bound@{load:g}"] = live - bound
    return summary
