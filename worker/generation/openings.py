"""The generations that have not had their last event, and the events on their way to callers.

Belongs to the lock it is made with: whoever calls holds it, but for `deliver`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

from worker.errors import WorkerError
from worker.generation.answer import Answer
from worker.generation.generation import Generation, usage_of
from worker.generation.records import (
    Delta,
    Failed,
    Finish,
    GenerationEvent,
    Usage,
)
from worker.refusals import EXPIRED_WAITING


class OpenGenerations:
    """Ends generations, each once, and hands their events to the event loop in one wake-up.

    `wake` schedules a callback on the event loop. `unwanted` is told of a generation that was
    ended while its sequences may still live.
    """

    def __init__(
        self,
        lock: threading.Lock,
        *,
        wake: Callable[[Callable[[], None]], object],
        unwanted: Callable[[Generation], None],
    ) -> None:
        self._lock = lock
        self._wake = wake
        self._unwanted = unwanted
        self._open: dict[Generation, None] = {}
        self._outbox: list[tuple[Generation, list[GenerationEvent]]] = []
        self._signalled = False
        self._idle_callbacks: list[Callable[[], None]] = []
        # Those that ended with an account.
        self.completed = 0

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[Generation]:
        return iter(list(self._open))

    @property
    def admitted(self) -> int:
        """Those that hold a place."""
        return sum(generation.admitted for generation in self._open)

    def add(self, generation: Generation) -> None:
        """Takes a new one."""
        self._open[generation] = None

    def tell(self, generation: Generation, *events: GenerationEvent) -> None:
        """Queues events; nothing for one that is closed."""
        if events and not generation.closed:
            self._outbox.append((generation, list(events)))

    def tell_piece(self, generation: Generation, answer: Answer, piece: Delta) -> None:
        """Queues a piece of an answer, if it holds anything, and its end, if it is over."""
        if piece.text or piece.tokens:
            self.tell(generation, piece)
        if answer.finished is not None:
            self.tell(generation, answer.finished)

    def close(self, generation: Generation, last: Usage | Failed) -> None:
        """Queues the last event."""
        self.tell(generation, last)
        generation.closed = True
        del self._open[generation]
        self.completed += isinstance(last, Usage)

    def fail(self, generation: Generation, error: WorkerError) -> None:
        """Ends one with an error, unless it has ended."""
        if not generation.closed:
            self.close(generation, Failed(error))
            self._unwanted(generation)

    def expire(self, generation: Generation) -> None:
        """Ends one at its deadline: what was made is told, without a token it is an error."""
        if not generation.started:
            self.fail(generation, EXPIRED_WAITING)
            return
        for answer in generation.answers.values():
            if answer.finished is None:
                self.tell_piece(generation, answer, answer.cut(Finish.DEADLINE))
        self._unwanted(generation)

    def settle(self, generation: Generation) -> None:
        """Closes one whose answers are all finished and accounted for."""
        if generation.complete and not generation.closed:
            generated = sum(answer.generated for answer in generation.answers.values())
            self.close(generation, usage_of(generation.records.values(), generated))

    def when_idle(self, callback: Callable[[], None]) -> None:
        """Calls back once, on the event loop, when none is open and every event delivered."""
        self._idle_callbacks.append(callback)
        self._signal()

    def flush(self) -> None:
        """Has the event loop woken, if there is anything for it."""
        if self._outbox:
            self._signal()

    def _signal(self) -> None:
        if not self._signalled:
            self._signalled = True
            self._wake(self.deliver)

    def deliver(self) -> None:
        """Hands events to their sinks; runs on the event loop, without the lock."""
        with self._lock:
            outbox, self._outbox = self._outbox, []
            self._signalled = False
        for generation, events in outbox:
            generation.sink(events)
        with self._lock:
            if not self._idle_callbacks or self._open or self._outbox:
                return
            callbacks, self._idle_callbacks = self._idle_callbacks, []
        for callback in callbacks:
            callback()
