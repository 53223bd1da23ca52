"""A profile as tables: times, the frontier, and whether 8 bits pay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.report import Report, host_facts

Point = Mapping[str, Any]


def host_of() -> dict[str, str]:
    """The facts of this machine that a profile file carries."""
    facts = host_facts()
    return {
        "cpu_model": facts.cpu_model,
        "cores_granted": f"{facts.cores_granted:g}",
        "kernel": facts.kernel,
        "onnxruntime": facts.packages.get("onnxruntime", ""),
    }


def print_profile(report: Report) -> None:
    """Prints what was measured and what follows from it."""
    console = Console()
    variants = [point for point in report.points if point["kind"] == "variant"]
    verdicts = [point for point in report.points if point["kind"] == "int8"]
    machine = report.settings["machine"]
    length = variants[0]["profile"]["reference_tokens"]
    console.print(
        f"{report.settings['model']} on {machine['cpu_model']} ({machine['cpu']}, "
        f"{machine['simd']} kernels), {machine['threads']} thread; percentiles of {length} tokens",
        highlight=False,
    )
    console.print(_times(variants), highlight=False)
    console.print()
    console.print(_frontier(variants), highlight=False)
    if verdicts:
        console.print()
        console.print(_verdicts(verdicts), highlight=False)
    for line in report.settings.get("warnings", ()):
        console.print(f"[yellow]warning:[/] {line}", highlight=False)


def _times(variants: list[Point]) -> Table:
    headings = ("p50 ms", "p95", "p99", "s0 ms", "µs/token", "fit ±", "passes ±", "vs own")
    table = _table("variant", right=headings)
    for point in variants:
        fitted = point["profile"]
        table.add_row(
            point["variant"],
            *(f"{fitted[key] / 1e3:.2f}" for key in ("p50_us", "p95_us", "p99_us", "s0_us")),
            f"{fitted['s1_us_per_token']:.0f}",
            f"{point['fit_error']:.0%}",
            f"{point['spread']:.1%}",
            f"{point['check']['ratio'] - 1:+.1%}",
        )
    return table


def _frontier(variants: list[Point]) -> Table:
    table = _table("variant", right=("quality", "95 %", "n", "p50 ms"))
    table.add_column("routing", no_wrap=True)
    for point in variants:
        evidence = point["quality"][0] if point["quality"] else None
        by = point["dominated_by"]
        table.add_row(
            point["variant"],
            f"{evidence['value']:.4f}" if evidence else "none",
            f"{evidence['low']:.3f} to {evidence['high']:.3f}" if evidence else "",
            str(evidence["n"]) if evidence else "",
            f"{point['profile']['p50_us'] / 1e3:.2f}",
            f"[dim]dominated by {by}[/]" if by else "routed to",
        )
    return table


def _verdicts(verdicts: list[Point]) -> Table:
    table = _table("8 bits", right=("time", "accuracy", "95 %"))
    table.add_column("verdict")
    for point in verdicts:
        table.add_row(
            point["variant"],
            f"{point['time']:.2f} x",
            f"{100 * point['difference']:+.2f}",
            f"{100 * point['low']:+.2f} to {100 * point['high']:+.2f}",
            point["verdict"] + ("" if point["paired"] else " (unpaired interval)"),
        )
    return table


def _table(first: str, *, right: tuple[str, ...]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold dim", padding=(0, 1, 0, 0))
    table.add_column(first, no_wrap=True)
    for heading in right:
        table.add_column(heading, justify="right", no_wrap=True)
    return table
