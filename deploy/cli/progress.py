"""Progress of a sweep: one bar for the whole, one for what is measured now."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from bench.sweep import Notify
from deploy.readiness import Readiness


@contextmanager
def bench_progress(
    console: Console, total_s: float
) -> Iterator[tuple[Notify, Callable[[Readiness], None]]]:
    """Yields what a sweep of about `total_s` seconds and a starting cluster report to.

    Where no terminal can draw bars, what is measured next is a line each.
    """
    columns = (
        TextColumn("{task.description:<38}"),
        BarColumn(bar_width=30),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        start = progress.add_task("starting the cluster", total=1.0)
        whole = progress.add_task("all runs", total=total_s, start=False)
        now = progress.add_task("", total=1.0, visible=False)
        done = 0.0

        def notify(what: str, elapsed: float, total: float) -> None:
            nonlocal done
            progress.update(start, visible=False)
            if elapsed == 0.0:
                progress.start_task(whole)
                progress.reset(now, description=what, total=total, visible=True)
                if not console.is_terminal:
                    console.print(f"{done:4.0f} of {total_s:.0f} s: {what}", highlight=False)
            progress.update(now, completed=elapsed)
            progress.update(whole, completed=done + elapsed)
            if elapsed >= total:
                done += total

        def on_start(readiness: Readiness) -> None:
            text = f"{readiness.ready} of {readiness.wanted} workers ready"
            progress.update(start, description=text, completed=readiness.progress)

        yield notify, on_start
