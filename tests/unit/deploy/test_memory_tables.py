"""`orchid status --memory` as it is read."""

from __future__ import annotations

import io
from dataclasses import replace

from rich.console import Console

from deploy.cli.memory_tables import memory_tables
from deploy.fleet_views import FleetStatus, WorkerView
from deploy.memory_views import MemoryLineView, MemoryView

MIB = 1 << 20
WORKER = WorkerView(
    "w0", "a:1", "encoder", "ready", 1, 1, "c", "s", "e", 0, 0, 0, 0, 0.0, 0, 0, 0.0
)


def shown(*workers: WorkerView) -> str:
    status = FleetStatus("cp", "1", "price", 1.0, workers, (), 0, 0, 0, 0.0, 0, {})
    console = Console(width=100, record=True, file=io.StringIO())
    for table in memory_tables(status):
        console.print(table)
    return console.export_text()


def test_each_worker_has_its_lines_and_what_is_measured() -> None:
    lines = (
        MemoryLineView("weights", "m/a mapped", 64 * MIB, 0),
        MemoryLineView("workspace", "m/a 512 tokens", 0, 24 * MIB),
        MemoryLineView("requests", "inputs", 0, 0),
    )
    memory = MemoryView(lines, 95 * MIB, 100 * MIB, 20 * MIB, "memory_mib", 120 * MIB)
    text = shown(replace(WORKER, memory=memory))
    assert "95.0 MiB accounted for, 100.0 measured (-5.0%)" in " ".join(text.split())
    assert "20.0 more (memory_mib), budget 120.0" in " ".join(text.split())
    rows = [line.split() for line in text.splitlines()]
    assert ["weights", "m/a", "mapped", "64.0"] in rows
    assert ["workspace", "m/a", "512", "tokens", "24.0"] in rows
    assert not any(row[:1] == ["requests"] for row in rows)


def test_a_worker_that_has_told_nothing_says_so() -> None:
    assert "w0 has not told its memory yet" in shown(WORKER)
    assert "no workers" in shown()
