"""Requests that have a first answer and wait for a better one. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from controlplane.policy.edf import EdfQueue
from controlplane.policy.records import Request
from controlplane.policy.selector import Stage

# Gains of a second are told apart to a millionth; what only compares comes after all that gain.
_PER_GAIN = 1e15


class Again(NamedTuple):
    """A request that waits for its second run, with the uncorrected predictions of its
    `eligible` variants, in ns.
    """

    request: Request
    nominal_ns: list[int]


class SecondLine:
    """The one that gains most for its time first, of equals the oldest: they have answers, so none
    is due.

    Nobody waits behind the others for long: whose time is up gets his first answer.
    """

    __slots__ = ("_queue",)

    def __init__(self, capacity: int) -> None:
        self._queue: EdfQueue[Again] = EdfQueue(capacity)

    def __len__(self) -> int:
        return len(self._queue)

    def push(self, request: Request, nominal_ns: list[int]) -> bool:
        """Let a request with a `stage` wait; False when the line is full."""
        stage: Stage = request.stage
        key = 0
        if not stage.shadow:
            timed = zip(request.eligible, nominal_ns, strict=True)
            key = -int(max([stage.gains.get(k, 0.0) / ns for k, ns in timed]) * _PER_GAIN)
        return self._queue.push(key, request.id, Again(request, nominal_ns))

    def head(self) -> Again | None:
        """Whose second run gains most for its time; None when nobody waits."""
        return self._queue.head()

    def remove(self, request_id: int) -> bool:
        """Take a request out; False when it does not wait here."""
        return self._queue.cancel(request_id) is not None

    def requests(self) -> Iterator[Request]:
        """Everybody who waits, in no order."""
        return iter([again.request for again in self._queue.items()])
