"""Events on their way to a caller who may read slowly.

What waits is bounded by what was asked: pieces of an answer that nobody has read yet become one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from worker.generation.records import Delta, GenerationEvent

# Pieces are merged up to so many tokens, so that a message stays small.
_MOST_TOKENS = 64


class Mailbox:
    """The unread events of one generation, in order for each answer. Not thread-safe."""

    def __init__(self) -> None:
        self._events: deque[GenerationEvent | _Merged] = deque()
        # The last piece of each answer, while nothing that must follow it has come.
        self._open: dict[int, _Merged] = {}
        # What was read last.
        self.taken: GenerationEvent | None = None

    def __len__(self) -> int:
        return len(self._events)

    def put(self, events: Iterable[GenerationEvent]) -> None:
        """Add events; a delta joins an unread one of its answer."""
        for event in events:
            if isinstance(event, Delta):
                self._merge(event)
            else:
                self._open.clear()
                self._events.append(event)

    def take(self) -> GenerationEvent | None:
        """The next event, or None when all are read."""
        if not self._events:
            return None
        event = self._events.popleft()
        if isinstance(event, _Merged):
            if self._open.get(event.index) is event:
                del self._open[event.index]
            self.taken = event.delta()
        else:
            self.taken = event
        return self.taken

    def _merge(self, delta: Delta) -> None:
        merged = self._open.get(delta.index)
        if merged is None or merged.tokens + len(delta.tokens) > _MOST_TOKENS:
            self._open[delta.index] = merged = _Merged(delta.index)
            self._events.append(merged)
        merged.add(delta)


class _Merged:
    """Pieces of one answer that will be read as one."""

    __slots__ = ("_parts", "index", "tokens")

    def __init__(self, index: int) -> None:
        self.index = index
        self.tokens = 0
        self._parts: list[Delta] = []

    def add(self, delta: Delta) -> None:
        self._parts.append(delta)
        self.tokens += len(delta.tokens)

    def delta(self) -> Delta:
        if len(self._parts) == 1:
            return self._parts[0]
        return Delta(
            self.index,
            "".join(part.text for part in self._parts),
            tuple(token for part in self._parts for token in part.tokens),
            tuple(score for part in self._parts for score in part.scores),
        )
