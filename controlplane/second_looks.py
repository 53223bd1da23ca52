"""The second look at an answer: is it the last, or does a better variant answer too?

A request whose first answer is kept stays one request: it waits in the queue again, its caller
hears of the first answer at the latest moment at which that is in time, and whatever ends the
second run otherwise gives the first answer too.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Callable

from controlplane.deployment import deployment_of
from controlplane.errors import Cancelled, ControlPlaneError, Refused
from controlplane.expiry import Deadlines
from controlplane.pending import Kept, Pending
from controlplane.policy.cascade import answered, confidence_of, first_by_ns
from controlplane.policy.cascading import FirstAnswer
from controlplane.policy.hands import Flight
from controlplane.policy.pool import Pool
from controlplane.policy.records import Answer, Request, Stages
from controlplane.policy.scheduler import Scheduler
from controlplane.policy.selector import Reason, Stage

_log = logging.getLogger(__name__)


def first_alone(answer: Answer) -> Answer:
    """An answer that nobody looks at again; one that began a cascade says that it is the first."""
    source = answer.provenance
    if source.reason != Reason.CASCADE:
        return answer
    return answer._replace(provenance=source._replace(reason=Reason.UNFINISHED, approximation=True))


class SecondLooks:
    """Keeps the first answers of cascades in `pending`. Lives on the event loop.

    `next_id` gives ids for shadows, `end` takes a request out of everything, and `give` gives its
    caller an answer.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        pending: dict[int, Pending],
        deadlines: Deadlines,
        next_id: Callable[[], int],
        end: Callable[[Pending], None],
        give: Callable[[Pending, Answer, int], None],
    ) -> None:
        self._scheduler = scheduler
        self._pending = pending
        self._deadlines = deadlines
        self._response_ns = scheduler.settings.response_ns
        self._next_id = next_id
        self._end = end
        self._give = give

    def took(self, pending: Pending, flight: Flight, answer: Answer, now_ns: int) -> bool:
        """Whether an answer was seen to here: given as that of a cascade, or kept for now.

        `answer` is what `flight`, which the request depended on and which is over, gave.
        """
        if pending.kept is not None:
            self._second(pending, pending.kept, flight, answer, now_ns)
            return True
        request, cascading = pending.request, flight.pool.cascading
        if cascading is None or pending.others or flight.table is not flight.pool.table:
            return False
        calibration = cascading.calibration(request, flight.decision.variant)
        logits = logits_of(answer, flight) if calibration is not None else []
        if calibration is None or not logits:
            return False
        confidence = confidence_of(logits, calibration)
        first = self._scheduler.consider(request, flight, confidence, now_ns)
        if first.drifted:
            self._tell(flight.pool, request)
        kept = Kept(answer, first, answered(logits))
        if not first.reason and self._go_on(pending, kept, flight, now_ns):
            return True
        reason = first.reason or Reason.BY_SLACK
        if reason != Reason.BY_SLACK:
            self._shadow(request, kept, flight, now_ns)
        provenance = answer.provenance._replace(
            reason=reason,
            approximation=reason != Reason.CONFIDENT,
            stages=Stages(flight.candidate.name, confidence, False, 1, first.right),
        )
        self._finish(pending, answer._replace(provenance=provenance), now_ns)
        return True

    def settled(self, pending: Pending, error: ControlPlaneError, now_ns: int) -> bool:
        """Whether a request whose second run came to nothing has ended with its first answer.

        It has not when that is late now, or when whoever asked has gone (Cancelled). Nobody asked
        for a shadow.
        """
        kept, request = pending.kept, pending.request
        stage: Stage | None = request.stage
        if kept is None or stage is None or stage.shadow:
            return stage is not None
        if isinstance(error, Cancelled) or now_ns > request.deadline_ns:
            return False
        if pending.flight is not None and request.trace is not None:
            request.trace.lost(pending.flight, now_ns, Reason.UNFINISHED)
        answer, first = kept.answer, kept.first
        stages = Stages(answer.provenance.variant, first.confidence, True, 1, first.right)
        # What was dropped for those behind it was too dear; all else was too slow.
        reason = Reason.BY_PRICE if isinstance(error, Refused) else Reason.UNFINISHED
        answer = answer._replace(
            provenance=answer.provenance._replace(reason=reason, approximation=True, stages=stages),
            outcome=answer.outcome._replace(
                total_ns=now_ns - request.arrived_ns,
                slack_at_answer_ns=request.deadline_ns - now_ns,
                dispatches=request.dispatches,
            ),
        )
        self._give(pending, answer, now_ns)
        return True

    def goes_on(self, pending: Pending, now_ns: int) -> bool:
        """Whether a request whose time to begin a second run is up has begun one, and may wait."""
        request = pending.request
        give_up_ns = first_by_ns(request) - self._response_ns
        if pending.kept is None or pending.flight is None or now_ns >= give_up_ns:
            return False
        self._deadlines.add(request.id, give_up_ns)
        return True

    def renew(self) -> None:
        """Somebody has looked: cascades that drifted are tried again."""
        for pool in self._scheduler.pools.values():
            if pool.cascading is not None:
                pool.cascading.drift.renew()

    def _go_on(self, pending: Pending, kept: Kept, flight: Flight, now_ns: int) -> bool:
        """Queue a request again with its first answer kept; False when that must be the last."""
        request, until_ns = pending.request, kept.first.until_ns
        if until_ns <= now_ns or not self._scheduler.follow(request, kept.first.stage):
            return False
        pending.kept = kept
        self._deadlines.discard(request.id)
        self._deadlines.add(request.id, until_ns)
        if request.trace is not None:
            request.trace.lost(flight, now_ns, "")
        return True

    def _finish(self, pending: Pending, answer: Answer, now_ns: int) -> None:
        self._end(pending)
        self._give(pending, answer, now_ns)

    def _second(
        self, pending: Pending, kept: Kept, flight: Flight, answer: Answer, now_ns: int
    ) -> None:
        request, first = pending.request, kept.first
        logits = logits_of(answer, flight)
        if logits and flight.table is flight.pool.table:
            self._compare(request, first, kept.place, flight, logits)
        stage: Stage = request.stage
        if stage.shadow:
            self._end(pending)
            return
        before, outcome = kept.answer.outcome, answer.outcome
        gain = stage.gains.get(flight.decision.variant, 0.0)
        stages = Stages(
            kept.answer.provenance.variant, first.confidence, True, 2, first.right + gain
        )
        # What it has waited for since the first answer was there.
        waited_ns = outcome.queue_ns - before.total_ns + before.preprocess_ns
        answer = answer._replace(
            provenance=answer.provenance._replace(reason=Reason.ESCALATED, stages=stages),
            outcome=outcome._replace(
                predicted_cpu_ns=before.predicted_cpu_ns + outcome.predicted_cpu_ns,
                charged_cpu_ns=before.charged_cpu_ns + outcome.charged_cpu_ns,
                queue_ns=before.queue_ns + max(0, waited_ns),
                execute_ns=before.execute_ns + outcome.execute_ns,
                slack_at_dispatch_ns=before.slack_at_dispatch_ns,
            ),
        )
        self._finish(pending, answer, now_ns)

    def _compare(
        self, request: Request, first: FirstAnswer, place: int, flight: Flight, logits: list[float]
    ) -> None:
        pool = flight.pool
        assert pool.cascading is not None
        if pool.cascading.compare(request, first, place, flight.decision.variant, logits):
            self._tell(pool, request)

    @staticmethod
    def _tell(pool: Pool, request: Request) -> None:
        assert pool.cascading is not None
        _log.warning(
            "model %s, class %s: no more cascades; %s. Fresh evidence or a reload turns them on "
            "again",
            pool.model,
            request.klass.name or "none",
            pool.cascading.drift.of(request.klass.name).cause,
        )

    def _shadow(self, request: Request, kept: Kept, flight: Flight, now_ns: int) -> None:
        """Ask a better variant behind the caller's back, if that is wanted and nobody waits."""
        pool = flight.pool
        assert pool.cascading is not None
        if not pool.cascading.may_shadow(pool, request):
            return
        shadow = Request(
            id=self._next_id(),
            model=request.model,
            klass=request.klass,
            shapes=request.shapes,
            payload=request.payload,
            arrived_ns=now_ns,
            deadline_ns=now_ns + request.budget_ns,
            cell=request.cell,
            # Its run is nobody's first, whose wait would be measured.
            dispatches=1,
            cascade=request.cascade,
            price=request.price,
        )
        if not self._scheduler.follow(shadow, Stage({kept.first.shadow: 1.0}, shadow=True)):
            return
        pool.cascading.drift.of(request.klass.name).shadowed()
        # Nobody looks at it.
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._pending[shadow.id] = Pending(shadow, future, kept=kept)
        self._deadlines.add(shadow.id, shadow.deadline_ns)


def logits_of(answer: Answer, flight: Flight) -> list[float]:
    """The logits of the only item of an answer; empty when it has none that are understood."""
    name = deployment_of(flight.table).primary_output
    for tensor in answer.outputs:
        if tensor.name == name and tensor.dtype == "float32" and len(tensor.shape) == 2:
            rows, classes = tensor.shape
            if rows == 1 and classes > 0 and len(tensor.data) == 4 * classes:
                return list(struct.unpack(f"<{classes}f", tensor.data))
    return []
