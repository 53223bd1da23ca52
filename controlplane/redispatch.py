"""Requests whose run came to nothing: queued again while their slack allows, or ended."""

from __future__ import annotations

from collections.abc import Callable

from controlplane import ends
from controlplane.accounts import Accounts
from controlplane.errors import ControlPlaneError, WorkerFault
from controlplane.pending import Pending
from controlplane.policy.hands import Flight
from controlplane.policy.scheduler import Scheduler
from controlplane.pump import Pump

# A request that has been with this many workers in vain may be what breaks them.
_MOST_DISPATCHES = 3


class Redispatch:
    """Takes requests of `pending` off flights that are lost. Lives on the event loop.

    `fail` ends a request without a new answer.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        pending: dict[int, Pending],
        accounts: Accounts,
        pump: Pump,
        *,
        now_ns: Callable[[], int],
        fail: Callable[[Pending, ControlPlaneError], None],
    ) -> None:
        self._scheduler = scheduler
        self._pending = pending
        self._accounts = accounts
        self._pump = pump
        self._now_ns = now_ns
        self._fail = fail

    def suspected(self, flights: tuple[Flight, ...]) -> None:
        """The worker of these flights is suspect: whoever answers first, wins.

        Without another worker they stay where they are; it may yet come back with them.
        """
        for flight in flights:
            if flight.pool.live:
                self.rescue(flight, WorkerFault("the worker fell silent"), may_answer=True)

    def rescue(self, flight: Flight, fault: WorkerFault, *, may_answer: bool = False) -> None:
        """Queue again what depends on a flight, which `may_answer` yet."""
        for request in flight.requests:
            pending = self._pending.get(request.id)
            if pending is not None and pending.drop(flight):
                if may_answer:
                    pending.others.append(flight)
                self.again(pending, flight, fault)

    def again(self, pending: Pending, flight: Flight, error: ControlPlaneError) -> None:
        """Queue a request of a failed flight again, or end it with what went wrong."""
        request = pending.request
        self._accounts.lost(request, flight, error)
        spent = request.dispatches >= _MOST_DISPATCHES and not pending.others
        if request.deadline_ns <= self._now_ns():
            self._fail(pending, ends.expired(request))
        elif pending.kept is not None or spent:
            self._fail(pending, error)
        elif request.dispatches < _MOST_DISPATCHES:
            try:
                queued = self._scheduler.requeue(request, flight)
            except ControlPlaneError:
                queued = False
            if queued:
                self._accounts.counters.redispatched += 1
                self._pump.soon()
            elif not pending.others:
                self._fail(pending, error)
