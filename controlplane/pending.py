"""A request between admission and its end."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from controlplane.policy.cascading import FirstAnswer
from controlplane.policy.hands import Flight
from controlplane.policy.records import Answer, Request


class Waiter(Protocol):
    """Who waits for the end of a request, of which it is told once; a future of asyncio is one."""

    def done(self) -> bool:
        """Whether it was told already, or does not wait any more."""

    def set_result(self, answer: Answer, /) -> None:
        """Tells it the answer."""

    def set_exception(self, error: BaseException, /) -> None:
        """Tells it why there is none."""

    def exception(self) -> object:
        """The error it was told of; futures complain of those that nobody has looked at."""


@dataclass(frozen=True, slots=True, eq=False)
class Kept:
    """A first answer that is kept while a better variant is asked: what was said of it, and the
    class that was answered.
    """

    answer: Answer
    first: FirstAnswer
    place: int


@dataclass(slots=True, eq=False)
class Pending:
    """`waiter` is told how it ends; `flight` is the run it depends on, None while it is queued.

    `others` are earlier flights that may still answer: their workers became suspect. `kept` is its
    first answer, if there is one.
    """

    request: Request
    waiter: Waiter
    flight: Flight | None = None
    others: list[Flight] = field(default_factory=list)
    kept: Kept | None = None

    def drop(self, flight: Flight) -> bool:
        """Forget a flight that ended; True when the request depended on it."""
        if self.flight is flight:
            self.flight = None
            return True
        if flight in self.others:
            self.others.remove(flight)
        return False
