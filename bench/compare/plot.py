"""Pictures of comparisons, drawn from their JSON alone, so that they can be drawn again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from bench.compare.figures import Cell, cells
from bench.compare.scenario import SCENARIOS, disturbance
from bench.compare.settings import BOUND, REFERENCE, settings_of
from bench.compare.timeline import BIN_S, Timeline, rolling, rolling_share, summed
from bench.plots import COLOURS
from bench.report import Report

_PREFIX = "sim-"


def style(policy: str) -> dict[str, Any]:
    """Line style of a policy; the simulated have their live one's colour, dashed."""
    simulated = policy.startswith(_PREFIX)
    return {
        "color": COLOURS.get(policy.removeprefix(_PREFIX), "#6b7280"),
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


def plot_scenario(report: Report, path: Path) -> None:
    """Draws a scenario's first load: figures by policy, and shares over time or by deadline."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    settings = settings_of(report)
    load = settings.loads[0]
    points = [point for point in report.points if point["load_factor"] == load]
    found = cells(points, report.settings["baseline"]["variant"])
    figure, axes = pyplot.subplots(1, 2, figsize=(15, 5.5), constrained_layout=True)
    _bars(axes[0], found)
    axes[0].set(title=f"load {load:g}", ylabel="% of offered")
    span = disturbance(settings)
    if span is not None:
        _over_time(axes[1], points, span)
    elif len(settings.deadline_mix) > 1:
        _by_deadline(axes[1], points)
    else:
        _over_time(axes[1], [p for p in points if p["seed"] == settings.seeds[0]], None)
    facts = f"{report.host.cpu_model}, {report.host.cores_granted:g} cores"
    what = SCENARIOS[settings.scenario].what
    figure.suptitle(f"{what}: {facts}, commit {report.commit[:10]}", fontsize="medium")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _bars(axis: Any, found: Sequence[Cell]) -> None:
    places = range(len(found))
    for shift, figure in ((-0.2, "accurate_goodput"), (0.2, "on_time")):
        having = [cell.figures[figure] for cell in found]
        axis.bar(
            [place + shift for place in places],
            [100 * value.mean for value in having],
            yerr=[100 * value.stderr for value in having],
            width=0.38,
            capsize=2,
            label=figure.replace("_", " "),
        )
    axis.set_xticks(list(places), [cell.policy for cell in found], rotation=35, ha="right")
    axis.legend(fontsize="small")
    axis.grid(alpha=0.25, axis="y")


def _over_time(axis: Any, points: Sequence[Any], span: tuple[float, float] | None) -> None:
    """On-time share of the second that ends at each time, all seeds together; live policies.

    Grey is the disturbance, or how much was offered, in % of the most in a second.
    """
    live = [point for point in points if point["kind"] == "live"]
    offered: Any = ()
    for policy in dict.fromkeys(point["policy"] for point in live):
        mine = [p["timeline"] for p in live if p["policy"] == policy]
        line = summed([Timeline.from_point(part) for part in mine])
        share = rolling_share(line.on_time, line.offered)
        offered = rolling(line.offered)
        axis.plot([1.0 + k * BIN_S for k in range(len(share))], 100 * share, **style(policy))
    if span is not None:
        axis.axvspan(span[0], max(span[1], span[0] + 0.1), color="0.85", zorder=0)
    elif len(offered):
        times = [1.0 + k * BIN_S for k in range(len(offered))]
        high = 100 * offered / max(1.0, offered.max())
        axis.fill_between(times, high, color="0.85", zorder=0, label="offered, of the most")
    axis.set(title="on time over the last second", xlabel="s", ylabel="% of offered requests")
    axis.set_ylim(0, 102)
    axis.legend(fontsize="small")
    axis.grid(alpha=0.25)


def _by_deadline(axis: Any, points: Sequence[Any]) -> None:
    live = [point for point in points if point["kind"] == "live"]
    factors = sorted({f for point in live for f in point["by_deadline"]}, key=float)
    for policy in dict.fromkeys(point["policy"] for point in live):
        mine = [p["by_deadline"] for p in live if p["policy"] == policy]
        shares = [fmean([row[f] for row in mine if f in row]) for f in factors]
        axis.plot(factors, [100 * share for share in shares], marker="o", **style(policy))
    axis.set(title="on time by deadline", xlabel="times the deadline", ylabel="% of offered")
    axis.set_ylim(0, 102)
    axis.legend(fontsize="small")
    axis.grid(alpha=0.25)


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
