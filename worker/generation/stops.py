"""Stop strings: the end of an answer, found in text that comes in pieces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Passed:
    """Text that is certain to be part of the answer, and the stop string that ended it, if any."""

    text: str
    stop: str | None = None


class StopStrings:
    """Lets text through up to the first of some strings, which is not part of it.

    Text that may be the beginning of a stop string is held until it is decided. The first is the
    one that is complete first; of those that are complete together, the longest. So it does not
    matter in what pieces the text comes.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._held = ""

    def push(self, text: str) -> Passed:
        """Take more text; not to be called again after a stop."""
        if not self._stops:
            return Passed(text)
        held = self._held + text
        found = self._first(held)
        if found is not None:
            start, stop = found
            self._held = ""
            return Passed(held[:start], stop)
        keep = max(_beginning(held, stop) for stop in self._stops)
        self._held = held[len(held) - keep :]
        return Passed(held[: len(held) - keep])

    def rest(self) -> str:
        """The text that is still held, which became part of the answer by its end."""
        held, self._held = self._held, ""
        return held

    def _first(self, text: str) -> tuple[int, str] | None:
        """Where the stop string that is complete first begins, and which it is."""
        best: tuple[int, int, str] | None = None
        for stop in self._stops:
            start = text.find(stop)
            if start >= 0 and (best is None or (start + len(stop), start) < best[:2]):
                best = (start + len(stop), start, stop)
        return None if best is None else best[1:]


def _beginning(text: str, stop: str) -> int:
    """The length of the longest end of `text` that a stop string begins with, but is not."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
