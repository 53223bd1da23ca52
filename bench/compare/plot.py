"""Pictures of comparisons, drawn from their JSON alone, so that they can be drawn again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.compare.figures import Cell, cells
from bench.compare.settings import BOUND, REFERENCE
from bench.report import Report

_COLOURS = {
    "orchid": "#7b2d8b",
    "price": "#be185d",
    "accurate": "#2b6cb0",
    "cheap": "#d97706",
    "published-accurate": "#60a5fa",
    "published-adaptive": "#0f766e",
    "early": "#65a30d",
    BOUND: "#111111",
}
_PREFIX = "sim-"


def style(policy: str) -> dict[str, Any]:
    """Line style of a policy; the simulated have their live one's colour, dashed."""
    simulated = policy.startswith(_PREFIX)
    return {
        "color": _COLOURS.get(policy.removeprefix(_PREFIX), "#6b7280"),
        "linestyle": "--" if simulated else ":" if policy == BOUND else "-",
        "linewidth": 2.4 if policy == REFERENCE else 1.2,
        "label": policy,
    }


def plot_compare(report: Report, path: Path) -> None:
    """Draws a comparison over loads; writes a PNG. Bars are standard errors over seeds."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    baseline = report.settings["baseline"]
    found = cells(report.points, baseline["variant"])
    figure, axes = pyplot.subplots(2, 3, figsize=(16, 8.5), constrained_layout=True)
    _lines(axes[0][0], found, "accurate_goodput", 100.0)
    axes[0][0].set(title="accurate goodput", ylabel="% of offered: quality of on-time answers")
    _ahead(axes[0][1], found)
    _lines(axes[0][2], found, "on_time", 100.0)
    axes[0][2].set(title="answered on time", ylabel="% of offered requests")
    _lines(axes[1][0], found, "p95_ms", 1.0)
    axes[1][0].set(title="p95 latency of answers", ylabel="ms from the scheduled send")
    deadline = report.settings["deadline_ms"] or baseline["deadline_ms"]
    axes[1][0].axhline(deadline, color="0.5", linestyle="-.", linewidth=1)
    _lines(axes[1][1], found, "cpu_cost", 1.0)
    axes[1][1].set(title="CPU of the workers", ylabel="ms for each offered request")
    _mix(axes[1][2], [c for c in found if c.policy == REFERENCE], baseline["by_quality"], pyplot)
    axes[1][2].set(title=f"who answers under {REFERENCE}", ylabel="% of on-time answers")
    for axis in axes.flat:
        axis.set_xlabel("offered load, multiples of the accurate variant's capacity")
        axis.grid(alpha=0.25)
    axes[0][0].legend(fontsize="small")
    facts = f"{report.host.cpu_model}, {report.host.cores_granted:g} cores"
    figure.suptitle(f"{report.bench}: {facts}, commit {report.commit[:10]}", fontsize="medium")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _policies(found: Sequence[Cell]) -> list[str]:
    return list(dict.fromkeys(cell.policy for cell in found))


def _lines(axis: Any, found: Sequence[Cell], figure: str, scale: float) -> None:
    for policy in _policies(found):
        mine = [cell for cell in found if cell.policy == policy and figure in cell.figures]
        axis.errorbar(
            [cell.load for cell in mine],
            [scale * cell.figures[figure].mean for cell in mine],
            yerr=[scale * cell.figures[figure].stderr for cell in mine],
            marker="o",
            markersize=3,
            capsize=2,
            **style(policy),
        )
    axis.set_ylim(bottom=0)


def _ahead(axis: Any, found: Sequence[Cell]) -> None:
    """Paired differences with their 95 % intervals; above 0 the reference is ahead."""
    for policy in _policies(found):
        mine = [(c.load, c.ahead) for c in found if c.policy == policy and c.ahead is not None]
        axis.errorbar(
            [load for load, _ in mine],
            [100 * ahead.mean for _, ahead in mine],
            yerr=[100 * (ahead.high - ahead.mean) for _, ahead in mine],
            marker="o",
            markersize=3,
            capsize=2,
            **style(policy),
        )
    axis.axhline(0.0, color="0.3", linewidth=0.8)
    axis.set_yscale("symlog", linthresh=5)
    axis.set(title=f"{REFERENCE} ahead, paired", ylabel="points of accurate goodput, 95 % interval")


def _mix(axis: Any, mine: Sequence[Cell], by_quality: Sequence[str], pyplot: Any) -> None:
    """Stacked bars, the most accurate variant at the bottom and darkest."""
    answered = {name for cell in mine for name, s in cell.variant_share.items() if s > 0.001}
    names = [name for name in by_quality if name in answered]
    names += sorted(answered.difference(names))
    floor = [0.0] * len(mine)
    labels = [f"{cell.load:g}" for cell in mine]
    colours = pyplot.get_cmap("viridis")
    for number, name in enumerate(names):
        shares = [100 * cell.variant_share.get(name, 0.0) for cell in mine]
        colour = colours(number / max(1, len(names) - 1))
        axis.bar(labels, shares, bottom=floor, label=name, width=0.6, color=colour)
        floor = [low + share for low, share in zip(floor, shares, strict=True)]
    if names:
        axis.legend(fontsize="small")
