"""The demonstration's table, for people."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from bench.demo import DemoRun
from bench.load.metrics import LoadResult
from bench.sweep import SweepPoint

_SHOWN_VARIANTS = 4


def demo_tables(run: DemoRun) -> Iterator[RenderableType]:
    """What was measured first, the table, and how to read it."""
    base = run.baseline
    yield Text(
        f"{run.workers} worker(s); {base.variant} alone answers in {base.solo_p50_ms:.1f} ms, "
        f"all workers together {base.capacity_per_s:.0f} requests/s: that is load 1.0. "
        f"Every request is worth waiting {base.deadline_ms:.0f} ms for."
    )
    yield _table(run)
    yield Text(
        "offered: requests that were due in the measured time. on time: answered within the "
        "deadline of when they were due. accuracy: right labels among those answers. right: "
        "answered right and on time, of all offered. CPU: control plane + workers, per offered "
        "request.",
        style="dim",
    )


def _table(run: DemoRun) -> Table:
    table = Table("policy")
    for heading in ("load", "offered/s", "on time", "accuracy", "right"):
        table.add_column(heading, justify="right")
    table.add_column("answered by")
    for heading in ("p50", "p95", "p99 ms", "CPU ms"):
        table.add_column(heading, justify="right")
    for point in run.points:
        last = point.load_factor == run.settings.load_factors[-1]
        table.add_row(*_row(point), end_section=last)
    return table


def _row(point: SweepPoint) -> tuple[str, ...]:
    result, latency = point.result, point.result.latency
    times = (latency.p50_ms, latency.p95_ms, latency.p99_ms) if latency else ()
    cpu = result.cpu_ms_per_request
    workers = sum(value for name, value in cpu.items() if name != "controlplane")
    return (
        point.policy,
        f"{point.load_factor:g}",
        f"{result.offered_per_s:.0f}",
        f"{result.on_time_share:.1%}",
        "" if result.accuracy != result.accuracy else f"{result.accuracy:.1%}",
        f"{result.right_share:.1%}",
        _mix(result),
        *(f"{ms:.0f}" for ms in times),
        *([""] * (3 - len(times))),
        f"{cpu.get('controlplane', 0.0):.1f} + {workers:.1f}",
    )


def _mix(result: LoadResult) -> str:
    shares = sorted(result.variant_share.items(), key=lambda item: -item[1])
    shown = [f"{name} {share:.0%}" for name, share in shares if share >= 0.005]
    rest = len(shown) - _SHOWN_VARIANTS
    return ", ".join(shown[:_SHOWN_VARIANTS]) + (f", +{rest}" if rest > 0 else "")
