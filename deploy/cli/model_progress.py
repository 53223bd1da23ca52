"""The steps of a build as bars: one for each thing that is under way."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich import filesize
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text

from worker.models.progress import Report, Unit


class ModelSteps:
    """Shows the steps that model builders report; each ends as one line."""

    def __init__(self, bars: Progress) -> None:
        self._bars = bars

    @contextmanager
    def step(self, label: str, total: int, unit: Unit) -> Iterator[Report]:
        """Show a bar until the step ends, then a line with its duration."""
        task = self._bars.add_task(label, total=total, unit=unit)
        try:
            yield lambda done: self._bars.update(task, completed=min(done, total))
        finally:
            elapsed = next(t.elapsed for t in self._bars.tasks if t.id == task) or 0.0
            self._bars.remove_task(task)
        self._bars.console.print(f"[green]done[/] {label:<38} {elapsed:7.1f} s", highlight=False)

    def note(self, text: str) -> None:
        """Print one line above the bars."""
        self._bars.console.print(f"[yellow]note[/] {text}", highlight=False)


class _Amount(ProgressColumn):
    """Bytes or items done of the total."""

    def render(self, task: Task) -> Text:
        total = int(task.total or 0)
        if task.fields["unit"] == "bytes":
            size = filesize.decimal(int(task.completed))
            return Text(f"{size} of {filesize.decimal(total)}")
        return Text(f"{int(task.completed)} of {total}" if total > 1 else "")


class _Remaining(ProgressColumn):
    """How long the step will take at its pace, once that shows."""

    def render(self, task: Task) -> Text:
        seconds = task.time_remaining
        if seconds is None or not task.completed or (task.total or 0) <= 1:
            return Text("")
        minutes, rest = divmod(int(seconds), 60)
        return Text(f"{minutes}:{rest:02d} left", style="progress.remaining")


@contextmanager
def model_progress(console: Console) -> Iterator[ModelSteps]:
    """Yield what model builders report to, drawn on ``console``."""
    columns = (
        TextColumn("{task.description:<38}"),
        BarColumn(bar_width=30),
        _Amount(),
        TimeElapsedColumn(),
        _Remaining(),
    )
    with Progress(*columns, console=console, transient=True) as bars:
        steps = ModelSteps(bars)
        try:
            yield steps
        except KeyboardInterrupt:
            steps.note("interrupted: what is done is kept, the same command goes on from there")
            raise
