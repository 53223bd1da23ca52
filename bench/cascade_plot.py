"""The picture of cascades offline: frontier, gains by decile, reliability; from JSON alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.plots import Point
from bench.report import Report

_FIXED, _CASCADE, _OTHER = "#111111", "#be185d", "0.75"
_COLOURS = ("#7b2d8b", "#2b6cb0", "#d97706", "#2f855a", "#b83280", "#0f766e")


def plot_cascade(report: Report, path: Path) -> None:
    """Draws accuracy against mean cost with and without cascades, and what they rest on.

    Writes a PNG. Raises ValueError for a report of something else.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    variants = _of(report, "variant")
    if report.bench != "cascade" or not variants:
        raise ValueError(f"expected the report of cascades, got one of {report.bench!r}")
    figure, axes = pyplot.subplots(1, 3, figsize=(16, 5), layout="constrained")
    _frontier(axes[0], report, variants)
    _deciles(axes[1], report)
    _reliability(axes[2], variants)
    for axis in axes:
        axis.grid(alpha=0.25)
        axis.legend(fontsize="small")
    settings = report.settings
    figure.suptitle(
        f"{settings['model']} on {settings['population']}: fitted on {settings['fitted_on']} "
        f"items, shown on {settings['tested_on']} others; costs on "
        f"{settings['machine']['cpu_model']}, commit {report.commit[:10]}",
        fontsize="medium",
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def _of(report: Report, kind: str) -> list[Point]:
    return [point for point in report.points if point["kind"] == kind]


def _is_chosen(report: Report, point: Point) -> bool:
    return [point["first"], point["to"]] == list(report.settings["pair"])


def _frontier(axis: Any, report: Report, variants: Sequence[Point]) -> None:
    curves = _of(report, "frontier")
    others = dict.fromkeys((p["first"], p["to"]) for p in curves if not _is_chosen(report, p))
    for number, (first, to) in enumerate(others):
        mine = [p for p in curves if (p["first"], p["to"]) == (first, to)]
        _line(axis, mine, color=_OTHER, label="other pairs" if number == 0 else None)
    chosen = [p for p in curves if _is_chosen(report, p)]
    first, to = report.settings["pair"]
    _line(axis, chosen, color=_CASCADE, marker=".", label=f"{first}, then {to}")
    rising = sorted(chosen, key=lambda p: p["cost"])
    axis.plot(
        [p["cost"] for p in rising],
        [100 * p["fixed"] for p in rising],
        color=_FIXED,
        linestyle="--",
        label="best mix of fixed variants",
    )
    for point in variants:
        axis.plot([point["cost"]], [100 * point["accuracy"]], "o", color=_FIXED)
        axis.annotate(
            point["variant"],
            (point["cost"], 100 * point["accuracy"]),
            textcoords="offset points",
            xytext=(5, -11),
            fontsize="x-small",
        )
    unit = report.settings["unit"]
    axis.set(
        title="accuracy against mean cost",
        xlabel=f"mean CPU time, 1 is {unit['variant']} ({unit['mean_us'] / 1e3:.1f} ms)",
        ylabel="% right",
    )


def _line(axis: Any, points: Sequence[Point], **style: Any) -> None:
    axis.plot([p["cost"] for p in points], [100 * p["accuracy"] for p in points], **style)


def _deciles(axis: Any, report: Report) -> None:
    mine = [point for point in _of(report, "decile") if _is_chosen(report, point)]
    places = [point["decile"] + 1 for point in mine]
    axis.errorbar(
        places,
        [100 * point["realised"] for point in mine],
        yerr=[196 * point["standard_error"] for point in mine],
        fmt="o",
        color=_FIXED,
        capsize=3,
        label="realised, 95 %",
    )
    axis.step(
        places,
        [100 * point["foretold"] for point in mine],
        where="mid",
        color=_CASCADE,
        label="foretold",
    )
    axis.axhline(0.0, color="0.5", linewidth=0.8)
    first, to = report.settings["pair"]
    axis.set(
        title=f"what {to} gains after {first}",
        xlabel=f"tenth of the items, the least sure of {first} first",
        ylabel="points of accuracy",
    )


def _reliability(axis: Any, variants: Sequence[Point]) -> None:
    for colour, point in zip(_COLOURS * 3, variants, strict=False):
        parts = point["reliability"]
        axis.plot(
            [100 * part["confidence"] for part in parts],
            [100 * part["right"] for part in parts],
            marker=".",
            color=colour,
            label=f"{point['variant']}: error {point['error']:.3f}",
        )
    axis.plot([50, 100], [50, 100], color="0.5", linewidth=0.8)
    axis.set(title="how often the sure are right", xlabel="confidence, %", ylabel="% right")
