"""Pictures of bench results, drawn from their JSON alone, so that they can be drawn again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.report import Report

Point = Mapping[str, Any]
# One colour a policy in every picture.
COLOURS = {
    "price": "#7b2d8b",
    "orchid-cascade": "#dc2626",
    "orchid": "#be185d",
    "accurate": "#2b6cb0",
    "cheap": "#d97706",
    "published-accurate": "#60a5fa",
    "published-adaptive": "#0f766e",
    "early": "#65a30d",
    "bound": "#111111",
}


def plot_sweep(report: Report, path: Path) -> None:
    """Draws a policy sweep: right answers, on-time share, p95, variant mix; writes a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 2, figsize=(11, 7.5), constrained_layout=True)
    policies = list(dict.fromkeys(point["policy"] for point in report.points))
    _lines(axes[0][0], report.points, policies, lambda p: 100 * p["right_share"])
    axes[0][0].set(title="answered right and on time", ylabel="% of offered requests")
    _lines(axes[0][1], report.points, policies, _on_time)
    axes[0][1].set(title="answered on time", ylabel="% of offered requests")
    _lines(axes[1][0], report.points, policies, _p95)
    axes[1][0].set(title="p95 latency of answers", ylabel="ms from the scheduled send")
    deadline = report.settings.get("deadline_ms")
    if deadline:
        axes[1][0].axhline(deadline, color="0.5", linestyle=":", label="deadline")
    mine = [p for p in report.points if p["policy"] == policies[0]]
    _mix(axes[1][1], mine, report.settings.get("by_quality", ()), pyplot.get_cmap("viridis"))
    axes[1][1].set(title=f"who answers under {policies[0]}", ylabel="% of on-time answers")
    for axis in axes.flat:
        axis.set_xlabel("offered load, multiples of the accurate variant's capacity")
        axis.grid(alpha=0.25)
        outside = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0)} if axis is axes[1][1] else {}
        axis.legend(fontsize="small", **outside)
    facts = (
        f"{report.host.cpu_model}, {report.host.cores_granted:g} cores, commit {report.commit[:10]}"
    )
    figure.suptitle(f"{report.bench}: {facts}", fontsize="medium")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def _on_time(point: Point) -> float:
    # Demonstrations kept from before have the share under another name.
    return 100.0 * float(point.get("on_time_share", point["on_time"]))


def _p95(point: Point) -> float:
    return float(point["latency"]["p95_ms"]) if point["latency"] else float("nan")


def _lines(
    axis: Any, points: Sequence[Point], policies: Sequence[str], value: Callable[[Point], float]
) -> None:
    for policy in policies:
        mine = [point for point in points if point["policy"] == policy]
        axis.plot(
            [point["load_factor"] for point in mine],
            [value(point) for point in mine],
            marker="o",
            label=policy,
            color=COLOURS.get(policy),
        )
    axis.set_ylim(bottom=0)


def _mix(axis: Any, points: Sequence[Point], by_quality: Sequence[str], colours: Any) -> None:
    """Stacked bars, the most accurate variant at the bottom and darkest."""
    answered = {name for point in points for name, s in point["variant_share"].items() if s > 0.001}
    names = [name for name in by_quality if name in answered]
    names += sorted(answered.difference(names))
    floor = [0.0] * len(points)
    labels = [f"{point['load_factor']:g}" for point in points]
    for number, name in enumerate(names):
        shares = [100 * point["variant_share"].get(name, 0.0) for point in points]
        colour = colours(number / max(1, len(names) - 1))
        axis.bar(labels, shares, bottom=floor, label=name, width=0.6, color=colour)
        floor = [low + share for low, share in zip(floor, shares, strict=True)]
