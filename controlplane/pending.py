"""A request between admission and its end."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from controlplane.policy.hands import Flight
from controlplane.policy.records import Answer, Request


@dataclass(slots=True, eq=False)
class Pending:
    """`flight` is the run it depends on, None while it is queued.

    `others` are earlier flights that may still answer: their workers became suspect.
    """

    request: Request
    future: asyncio.Future[Answer]
    flight: Flight | None = None
    others: list[Flight] = field(default_factory=list)

    def drop(self, flight: Flight) -> bool:
        """Forget a flight that ended; True when the request depended on it."""
        if self.flight is flight:
            self.flight = None
            return True
        if flight in self.others:
            self.others.remove(flight)
        return False
