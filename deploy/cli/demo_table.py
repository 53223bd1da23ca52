"""The demonstration's table, for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from bench.demo import DemoRun
from bench.sweep import SweepPoint


def demo_tables(run: DemoRun) -> Iterator[RenderableType]:
    """What was measured first, the table, and how to read it."""
    base = run.baseline
    yield Text(
        f"{run.workers} worker(s); {base.variant} alone answers in {base.solo_p50_ms:.1f} ms, "
        f"all workers together {base.capacity_per_s:.0f} requests/s: that is load 1.0. "
        f"Every request is worth waiting {base.deadline_ms:.0f} ms for."
    )
    yield _outcomes(run)
    yield _answered_by(run)
    yield Text(
        "on time: answered within the deadline of when it was due, of all offered. accuracy: right "
        "labels among those answers. right: answered right and on time, of all offered. CPU: "
        "control plane + workers, ms per offered request. ours (orchid-cascade): a variant for "
        "each request and a second one where the first is unsure; accurate: only the most "
        "accurate one; cheap: only the fastest.",
        style="dim",
    )


def _outcomes(run: DemoRun) -> Table:
    table = Table("policy", title="what callers got", title_justify="left", padding=(0, 1, 0, 0))
    for heading in ("load", "per s", "on time", "accuracy", "right", "p50", "p95", "p99 ms", "CPU"):
        table.add_column(heading, justify="right", no_wrap=True)
    for point in run.points:
        last = point.load_factor == run.settings.load_factors[-1]
        ours = point.policy == run.settings.policies[0]
        table.add_row("ours" if ours else point.policy, *_row(point), end_section=last)
    return table


def _row(point: SweepPoint) -> tuple[str, ...]:
    result, latency = point.result, point.result.latency
    times = (latency.p50_ms, latency.p95_ms, latency.p99_ms) if latency else ()
    cpu = result.cpu_ms_per_request
    workers = sum(value for name, value in cpu.items() if name != "controlplane")
    return (
        f"{point.load_factor:g}",
        f"{result.offered_per_s:.0f}",
        f"{result.on_time:.1%}",
        "" if result.accuracy != result.accuracy else f"{result.accuracy:.1%}",
        f"{result.right_share:.1%}",
        *(f"{ms:.0f}" for ms in times),
        *([""] * (3 - len(times))),
        f"{cpu.get('controlplane', 0.0):.1f}+{workers:.1f}",
    )


def _answered_by(run: DemoRun) -> Table:
    """Shares of the variants, best first, for the policy that chooses among them."""
    chooser = [point for point in run.points if point.policy == run.settings.policies[0]]
    names = [name for name in run.baseline.by_quality if _ever_answered(name, chooser)]
    title = f"who answered under {run.settings.policies[0]}"
    table = Table("variant", title=title, title_justify="left", padding=(0, 1, 0, 0))
    for point in chooser:
        table.add_column(f"at {point.load_factor:g}", justify="right")
    for name in names:
        shares = (point.result.variant_share.get(name, 0.0) for point in chooser)
        table.add_row(name, *(f"{share:.0%}" if share >= 0.005 else "" for share in shares))
    return table


def _ever_answered(name: str, points: Sequence[SweepPoint]) -> bool:
    return any(point.result.variant_share.get(name, 0.0) >= 0.005 for point in points)
