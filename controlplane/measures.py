"""What the control plane measures of requests and generations; `controlplane/metrics` shows it.

Everything is counted in plain integers by whoever owns the request, on the event loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from controlplane.histogram import RATIOS, SIZES, TIMES_NS, Histogram
from controlplane.policy.hands import Flight
from controlplane.policy.records import Answer, Request, RequestClass

NONE = "none"
OTHER = "other"
# So many names of callers are told apart; later ones are OTHER, so that none can grow a scrape.
MOST_TENANTS = 32
MOST_CLASSES = 16

# Where the deadline of an admitted request passed.
QUEUED, RUNNING = "queued", "running"


class Names:
    """Label values that callers choose: the first ones are told apart, all later are OTHER."""

    __slots__ = ("_known", "_most")

    def __init__(self, most: int, known: Iterable[str] = ()) -> None:
        self._most = most
        self._known = {"": NONE}
        for name in known:
            self.label(name)

    def label(self, name: str) -> str:
        """The label value under which `name` is counted."""
        known = self._known.get(name)
        if known is not None:
            return known
        if len(self._known) > self._most:
            return OTHER
        self._known[name] = name
        return name


class Callers:
    """Who asks, as label values, and the CPU time they were charged, over both lanes.

    Classes that are not configured are refused, so only configured ones have a label. Configured
    tenants are always told apart, others while there are few.
    """

    __slots__ = ("_classes", "_configured", "_tenants", "cpu_ns")

    def __init__(self, classes: Iterable[str], tenants: Iterable[str] = ()) -> None:
        self._configured = frozenset(classes)
        self._classes = Names(MOST_CLASSES, sorted(self._configured))
        known = sorted(tenants)
        self._tenants = Names(MOST_TENANTS + len(known), known)
        # By tenant and class.
        self.cpu_ns: dict[tuple[str, str], int] = {}

    def klass(self, klass: RequestClass) -> str:
        """The label of a request class."""
        if klass.name and klass.name not in self._configured:
            return OTHER
        return self._classes.label(klass.name)

    def charge(self, klass: RequestClass, cpu_ns: int) -> None:
        """A run or a generation took this CPU time."""
        key = (self._tenants.label(klass.tenant), self.klass(klass))
        self.cpu_ns[key] = self.cpu_ns.get(key, 0) + cpu_ns


class RequestMeasures:
    """Requests of the encoder lane, from the queue's door to their end. The dispatcher writes.

    Times are in ns. Keys are label values: `received` by model and class, `ended` by these and
    outcome, `refused` by model and reason, `missed` by model and where the deadline passed,
    `answers` by model, variant and the decision's reason; distributions as their names say.
    """

    __slots__ = ("answers", "batch", "callers", "duration", "ended", "missed", "queue", "received",
                 "refused", "service", "slack", "tokens")  # fmt: skip

    def __init__(self, callers: Callers) -> None:
        self.callers = callers
        self.received: dict[tuple[str, str], int] = {}
        self.ended: dict[tuple[str, str, str], int] = {}
        self.refused: dict[tuple[str, str], int] = {}
        self.missed: dict[tuple[str, str], int] = {}
        self.answers: dict[tuple[str, str, str], int] = {}
        # By model and variant.
        self.tokens: dict[tuple[str, str], int] = {}
        self.batch: dict[tuple[str, str], Histogram] = {}
        self.service: dict[tuple[str, str], Histogram] = {}
        self.slack: dict[tuple[str, str], Histogram] = {}
        # By model and class; queue also by variant.
        self.duration: dict[tuple[str, str], Histogram] = {}
        self.queue: dict[tuple[str, str, str], Histogram] = {}

    def arrived(self, model: str, klass: RequestClass) -> None:
        """A request stands at the door; `model` is NONE when nobody has it."""
        key = (model, self.callers.klass(klass))
        self.received[key] = self.received.get(key, 0) + 1

    def end(self, model: str, klass: RequestClass, outcome: str) -> None:
        """A request ended, admitted or not."""
        key = (model, self.callers.klass(klass), outcome)
        self.ended[key] = self.ended.get(key, 0) + 1

    def refuse(self, model: str, reason: str) -> None:
        """A request was refused at the door, or dropped for those behind it."""
        key = (model, reason)
        self.refused[key] = self.refused.get(key, 0) + 1

    def miss(self, request: Request) -> None:
        """The deadline of an admitted request passed."""
        key = (request.model, RUNNING if request.dispatches else QUEUED)
        self.missed[key] = self.missed.get(key, 0) + 1

    def left(self, request: Request, now_ns: int) -> None:
        """A request left the queue for good without ever having been sent to a worker."""
        self._waited(request, NONE, now_ns)

    def sent(self, flight: Flight) -> None:
        """A run was handed to a worker."""
        variant = flight.candidate.name
        key = (flight.pool.model, variant)
        batch = self.batch.get(key)
        if batch is None:
            batch = self.batch[key] = Histogram(SIZES)
            self.slack[key] = Histogram(TIMES_NS)
        batch.observe(len(flight.requests))
        slack, sent_ns = self.slack[key], flight.sent_ns
        for request in flight.requests:
            slack.observe(request.deadline_ns - sent_ns)
            # A request that is sent again has left the queue before.
            if request.dispatches == 1:
                self._waited(request, variant, sent_ns)

    def ran(self, flight: Flight, run_ns: int, charges_ns: Sequence[int]) -> None:
        """A run took `run_ns` on its worker; its requests are charged `charges_ns` of CPU time."""
        for request, charge_ns in zip(flight.requests, charges_ns, strict=True):
            self.callers.charge(request.klass, charge_ns)
        key = (flight.pool.model, flight.candidate.name)
        service = self.service.get(key)
        if service is None:
            service = self.service[key] = Histogram(RATIOS)
        service.observe(run_ns * 1000 // max(1, flight.predicted_ns))

    def answered(self, request: Request, answer: Answer) -> None:
        """A request got its answer in time."""
        model, variant = request.model, answer.provenance.variant
        of_variant = (model, variant)
        self.tokens[of_variant] = self.tokens.get(of_variant, 0) + answer.outcome.input_tokens
        decided = (model, variant, answer.provenance.reason)
        self.answers[decided] = self.answers.get(decided, 0) + 1
        of_class = (model, self.callers.klass(request.klass))
        duration = self.duration.get(of_class)
        if duration is None:
            duration = self.duration[of_class] = Histogram(TIMES_NS)
        duration.observe(answer.outcome.total_ns)

    def _waited(self, request: Request, variant: str, until_ns: int) -> None:
        key = (request.model, self.callers.klass(request.klass), variant)
        queue = self.queue.get(key)
        if queue is None:
            queue = self.queue[key] = Histogram(TIMES_NS)
        queue.observe(until_ns - request.arrived_ns - request.preprocess_ns)
