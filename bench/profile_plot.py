"""The picture of a profile: quality, with its intervals, against cost; drawn from JSON alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.plots import Point
from bench.report import Report

_COLOURS = ("#7b2d8b", "#2b6cb0", "#d97706", "#2f855a", "#b83280")


def plot_profile(report: Report, path: Path) -> None:
    """Draws every variant's cost and quality, the frontier joined; writes a PNG.

    The left side has the population that routing goes by, the right side all the others.
    Raises ValueError for a report of something else.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    points = [point for point in report.points if point.get("kind") == "variant"]
    if report.bench != "profile" or not points:
        raise ValueError(f"expected the report of a profile, got one of {report.bench!r}")
    others = _populations(points)[1:]
    figure, axes = pyplot.subplots(
        1,
        2 if others else 1,
        figsize=(13 if others else 7.5, 5.2),
        squeeze=False,
        layout="constrained",
    )
    _frontier(axes[0][0], points)
    for colour, population in zip(_COLOURS * 3, others, strict=False):
        _population(axes[0][1], points, population, colour)
    if others:
        axes[0][1].set_title("other populations")
        axes[0][1].legend(fontsize="small")
    length = points[0]["profile"]["reference_tokens"]
    for axis in axes[0]:
        axis.set(xlabel=f"median time of one run of {length} tokens, ms", ylabel="accuracy")
        axis.set_xscale("log")
        axis.grid(alpha=0.25, which="both")
        axis.xaxis.set_major_formatter(matplotlib.ticker.FormatStrFormatter("%g"))
        axis.xaxis.set_minor_formatter(matplotlib.ticker.FormatStrFormatter("%g"))
        axis.tick_params(axis="x", which="minor", labelsize="x-small")
    machine = report.settings["machine"]
    figure.suptitle(
        f"{report.settings['model']} on {machine['cpu_model']} ({machine['cpu']}), "
        f"{machine['threads']} thread, commit {report.settings['measured']['commit'][:10]}",
        fontsize="medium",
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def _frontier(axis: Any, points: Sequence[Point]) -> None:
    routed = sorted((p for p in points if not p["dominated_by"]), key=_cost)
    first = _populations(points)[0] if _populations(points) else ""
    axis.plot([_cost(p) for p in routed], [_value(p, first) for p in routed], color="#7b2d8b")
    for point in points:
        chosen = not point["dominated_by"]
        _bar(axis, point, first, "#7b2d8b" if chosen else "0.6", filled=chosen)
        axis.annotate(
            point["variant"],
            (_cost(point), _value(point, first)),
            textcoords="offset points",
            xytext=(5, -11),
            fontsize="x-small",
            color="black" if chosen else "0.5",
        )
    axis.set_title(
        f"{first}: routed to (joined), dominated (grey); 95 % intervals", fontsize="medium"
    )


def _population(axis: Any, points: Sequence[Point], population: str, colour: str) -> None:
    known = sorted((p for p in points if _evidence(p, population)), key=_cost)
    for point in known:
        _bar(axis, point, population, colour, filled=not point["dominated_by"])
    axis.plot(
        [_cost(p) for p in known],
        [_value(p, population) for p in known],
        color=colour,
        alpha=0.4,
        label=population,
    )


def _bar(axis: Any, point: Point, population: str, colour: str, *, filled: bool) -> None:
    found = _evidence(point, population)
    value = _value(point, population)
    below, above = (value - found["low"], found["high"] - value) if found else (0.0, 0.0)
    axis.errorbar(
        [_cost(point)],
        [value],
        yerr=[[below], [above]],
        fmt="o",
        color=colour,
        markerfacecolor=colour if filled else "white",
        capsize=2,
        linewidth=1,
        markersize=5,
    )


def _populations(points: Sequence[Point]) -> list[str]:
    """Populations in the order of the evidence, without those of clear texts only."""
    names = dict.fromkeys(item["population"] for point in points for item in point["quality"])
    return [name for name in names if not name.endswith("-clear")]


def _evidence(point: Point, population: str) -> Point | None:
    return next((item for item in point["quality"] if item["population"] == population), None)


def _value(point: Point, population: str) -> float:
    found = _evidence(point, population)
    return float(found["value"]) if found else 0.0


def _cost(point: Point) -> float:
    return float(point["profile"]["p50_us"]) / 1e3
