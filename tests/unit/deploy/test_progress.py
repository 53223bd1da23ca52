"""Progress of what takes minutes, on a terminal and without one."""

from __future__ import annotations

import io

from rich.console import Console

from deploy.cli.progress import bench_progress


def shown(*, terminal: bool) -> str:
    console = Console(file=io.StringIO(), width=80, force_terminal=terminal)
    with bench_progress(console, 30.0) as (notify, _):
        for what, total in (("ours at 0.4", 10.0), ("ours at 0.8", 20.0)):
            notify(what, 0.0, total)
            notify(what, total / 2, total)
            notify(what, total, total)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_without_a_terminal_each_run_is_a_line() -> None:
    lines = [line.strip() for line in shown(terminal=False).splitlines() if line.strip()]
    assert lines[:2] == ["0 of 30 s: ours at 0.4", "10 of 30 s: ours at 0.8"]


def test_a_terminal_has_bars_only() -> None:
    assert "of 30 s: ours" not in shown(terminal=True)
