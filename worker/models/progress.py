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


class Silent:
    """Progress that nobody watches."""

    @contextmanager
    def step(self, label: str, total: int, unit: Unit) -> Iterator[Report]:
        """Do nothing with the reports."""
        yield lambda done: None

    def note(self, text: str) -> None:
        """Drop the line."""
