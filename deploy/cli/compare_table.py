"""The table of a comparison, for people: live, simulated and bound under one another."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from bench.compare.figures import Cell, Estimate


def compare_table(found: Sequence[Cell]) -> Table:
    """One row a policy and load; means over the seeds, paired differences with intervals."""
    table = Table(box=None, pad_edge=False, header_style="bold dim", padding=(0, 1, 0, 0))
    table.add_column("load", no_wrap=True)
    table.add_column("policy", no_wrap=True)
    headings = ("accurate\ngoodput", "±", "price ahead\n(95 %)", "on\ntime", "of ad-\nmitted")
    for heading in (
        *headings,
        "right\nlabels",
        "best\nshare",
        "p95\nms",
        "CPU\nms",
        "esca-\nlated",
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    last = None
    for cell in found:
        figures = cell.figures
        goodput = figures.get("accurate_goodput")
        table.add_row(
            f"{cell.load:g}" if cell.load != last else "",
            cell.policy,
            _percent(goodput),
            f"{100 * goodput.stderr:.1f}" if goodput else "-",
            _interval(cell.ahead),
            _percent(figures.get("on_time")),
            _percent(figures.get("on_time_of_admitted")),
            _percent(figures.get("accuracy")),
            f"{100 * figures['share_most_accurate'].mean:.0f}",
            _number(figures.get("p95_ms"), 0),
            _number(figures.get("cpu_cost"), 1),
            _percent(figures.get("escalated")),
        )
        last = cell.load
    return table


def _percent(value: Estimate | None) -> str:
    return "-" if value is None else f"{100 * value.mean:.1f}"


def _number(value: Estimate | None, digits: int) -> str:
    return "-" if value is None else f"{value.mean:.{digits}f}"


def _interval(ahead: Estimate | None) -> str:
    if ahead is None:
        return ""
    if ahead.n == 1:
        return f"{100 * ahead.mean:+.1f}"
    return f"{100 * ahead.mean:+.1f} ± {100 * (ahead.high - ahead.mean):.1f}"
