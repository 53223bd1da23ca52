"""The workers' memory as tables."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from deploy.fleet_views import FleetStatus, WorkerView

_MIB = 1 << 20


def memory_tables(status: FleetStatus) -> Iterator[RenderableType]:
    """For each worker what its memory is for, and what the kernel counts."""
    if not status.workers:
        yield Text("no workers")
    for worker in status.workers:
        memory = worker.memory
        if not memory.measured:
            yield Text(f"worker {worker.id} has not told its memory yet", style="dim")
            continue
        limit = f"a load may take {_mib(memory.available)} more ({memory.limited_by})"
        if memory.budget:
            limit += f", budget {_mib(memory.budget)}"
        yield Text(
            f"worker {worker.id} ({worker.worker_class}): {_mib(memory.accounted)} MiB accounted "
            f"for, {_mib(memory.measured)} measured ({memory.error:+.1%}); {limit}"
        )
        yield _lines(worker)
        yield Text()


def _lines(worker: WorkerView) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold dim")
    table.add_column("lifetime", no_wrap=True)
    table.add_column("of", overflow="fold")
    table.add_column("MiB", justify="right")
    table.add_column("at most", justify="right")
    for line in worker.memory.lines:
        if line.bytes or line.most:
            table.add_row(
                line.lifetime,
                line.owner,
                _mib(line.bytes) if line.bytes else "",
                _mib(line.most) if line.most else "",
            )
    return table


def _mib(size: int) -> str:
    return f"{size / _MIB:.1f}"
