"""How long work tells whoever watches how far it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Literal, Protocol

Unit = Literal["bytes", "items"]
# Called with the amount done so far.
Report = Callable[[int], None]


class Progress(Protocol):
    """Shows steps of long work; one step at a time or several from different threads."""

    def step(self, label: str, total: int, unit: Unit) -> AbstractContextManager[Report]:
        """Begin a step of ``total`` units; its end is the end of the context."""
        ...

    def note(self, text: str) -> None:
        """Show one line that stays."""
        ...


class Stopped(Exception):
    """Work was told to stop and did so at its next report; what was done is kept."""


class Stoppable:
    """Progress of several threads whose work can be ended at its next report."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._stopped = False

    def stop(self) -> None:
        """From now on every report and every new step raises Stopped."""
        self._stopped = True

    @contextmanager
    def step(self, label: str, total: int, unit: Unit) -> Iterator[Report]:
        """Begin a step; raises Stopped after `stop`."""
        self._check()
        with self._progress.step(label, total, unit) as report:

            def checked(done: int) -> None:
                report(done)
                self._check()

            yield checked

    def note(self, text: str) -> None:
        """Show one line that stays."""
        self._progress.note(text)

    def _check(self) -> None:
        if self._stopped:
            raise Stopped


class Silent:
    """Progress that nobody watches."""

    @contextmanager
    def step(self, label: str, total: int, unit: Unit) -> Iterator[Report]:
        """Do nothing with the reports."""
        yield lambda done: None

    def note(self, text: str) -> None:
        """Drop the line."""
