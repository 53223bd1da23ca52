"""First answers, second looks and shadows in the simulated world, on recorded answers.

What is decided is `Scheduler.consider`'s; here is only what the dispatcher does about it.
"""

from __future__ import annotations

from dataclasses import dataclass

from bench.sim.answers import Answers
from controlplane.policy.cascade import answered, confidence_of
from controlplane.policy.cascading import FirstAnswer
from controlplane.policy.hands import Flight
from controlplane.policy.records import Request
from controlplane.policy.scheduler import Scheduler
from controlplane.policy.selector import Stage


@dataclass(frozen=True, slots=True)
class Kept:
    """A first answer: what the policy said of it, and the class that was answered."""

    first: FirstAnswer
    place: int


class SecondLooks:
    """Keeps the first answers of one run.

    `items` are the recorded items of its requests, by number. Shadows are numbered after these.
    `off_ns` is when cascades were turned off, by class.
    """

    def __init__(self, scheduler: Scheduler, answers: Answers, items: list[int]) -> None:
        self.kept: dict[int, Kept] = {}
        self.off_ns: dict[str, int] = {}
        self._scheduler = scheduler
        self._answers = answers
        self._items = items
        self._last = len(items) - 1
        # The requests that shadows are of.
        self._shadowed: dict[int, int] = {}

    def row(self, number: int) -> int:
        """The request of the workload that a request is, or is the shadow of."""
        return self._shadowed.get(number, number)

    def first(self, request: Request, flight: Flight, now_ns: int) -> Kept | None:
        """The first answer of a cascade; None when the flight's answer is the last in any case."""
        cascading, number = flight.pool.cascading, flight.decision.variant
        if cascading is None or flight.table is not flight.pool.table:
            return None
        calibration = cascading.calibration(request, number)
        if calibration is None:
            return None
        logits = self._answers.row(flight.candidate.name, self._items[request.id])
        confidence = confidence_of(logits, calibration)
        first = self._scheduler.consider(request, flight, confidence, now_ns)
        if first.drifted:
            self.off_ns[request.klass.name] = now_ns
        return Kept(first, answered(logits))

    def second(self, request: Request, flight: Flight, now_ns: int) -> float:
        """Compare a second answer; returns the chance that it is right, by the evidence."""
        kept, number = self.kept[request.id], flight.decision.variant
        cascading = flight.pool.cascading
        assert cascading is not None
        logits = self._answers.row(flight.candidate.name, self._items[self.row(request.id)])
        if cascading.compare(request, kept.first, kept.place, number, logits):
            self.off_ns[request.klass.name] = now_ns
        return kept.first.right + kept.first.stage.gains.get(number, 0.0)

    def shadow(self, request: Request, kept: Kept, flight: Flight, now_ns: int) -> Request | None:
        """A queued request that compares an answer that was the last; None where none may."""
        pool = flight.pool
        if pool.cascading is None or not pool.cascading.may_shadow(pool, request):
            return None
        self._last += 1
        shadow = Request(
            id=self._last,
            model=request.model,
            klass=request.klass,
            shapes=request.shapes,
            payload=None,
            arrived_ns=now_ns,
            deadline_ns=now_ns + request.budget_ns,
            cascade=request.cascade,
            price=request.price,
        )
        if not self._scheduler.follow(shadow, Stage({kept.first.shadow: 1.0}, shadow=True)):
            return None
        pool.cascading.drift.of(request.klass.name).shadowed()
        self.kept[shadow.id] = kept
        self._shadowed[shadow.id] = request.id
        return shadow
