"""Makes the records of requests of the encoder lane, when they are sent, have run and end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from controlplane.policy.admission import Admission
from controlplane.policy.hands import Flight, parts_of
from controlplane.policy.records import Answer, Request, Shape, TokenPayload, carried_bytes
from controlplane.policy.selector import Reason
from controlplane.records.demand import AFTERWARDS, ENCODER, MOST_NAME, DemandRecord, Use
from controlplane.records.estimates import FadingMeans, Key

_NO_SHAPE = Shape(0, 0, 0)


class Sink(Protocol):
    """Where records go; does not block and may drop them."""

    def put(self, record: DemandRecord) -> None: ...


class Sampling:
    """Takes every record, or an even share of them; each stands for `weight`."""

    def __init__(self, share: float) -> None:
        self.weight = 1.0 / share
        self._share = share
        self._due = 0.0

    def takes(self) -> bool:
        """Whether the next one is taken."""
        self._due += self._share
        if self._due < 1.0:
            return False
        self._due -= 1.0
        return True


class _Sent:
    """The last dispatch of a request, and the CPU time of all its runs that ended."""

    __slots__ = ("batch", "cpu_ns", "predicted_ns", "reason", "rung", "sent_ns", "tokenizer",
                 "variant")  # fmt: skip

    def __init__(self, flight: Flight, predicted_ns: int, cpu_ns: int) -> None:
        self.cpu_ns = cpu_ns
        self.batch = len(flight.requests)
        self.predicted_ns = predicted_ns
        self.reason = flight.decision.reason
        self.rung = flight.rung
        self.sent_ns = flight.sent_ns
        self.tokenizer = flight.candidate.tokenizer
        self.variant = flight.candidate.name


class RequestRecorder:
    """Belongs to the dispatcher's loop. `wall_offset_ns` turns its clock into time since 1970."""

    def __init__(self, sink: Sink, sampling: Sampling, wall_offset_ns: int) -> None:
        self._sink = sink
        self._sampling = sampling
        self._wall_offset_ns = wall_offset_ns
        self._means = FadingMeans()
        # Of requests that were sent and have not ended.
        self._sent: dict[int, _Sent] = {}

    def __len__(self) -> int:
        return len(self._sent)

    def sent(self, flight: Flight) -> None:
        """A run is on its way to its worker."""
        # Predictions are of time; on a machine that others use not all of that is CPU time.
        share = self._means.mean(_share_of(flight), 1.0)
        parts = parts_of(flight, int(flight.predicted_ns * share))
        for request, part in zip(flight.requests, parts, strict=True):
            before = self._sent.get(request.id)
            cpu_ns = 0 if before is None else before.cpu_ns
            self._sent[request.id] = _Sent(flight, part, cpu_ns)

    def ran(self, flight: Flight, run_ns: int, charges_ns: Sequence[int]) -> None:
        """A run ended; before its requests hear of it."""
        if run_ns:
            self._means.observe(_share_of(flight), sum(charges_ns) / run_ns)
        for request, charge_ns in zip(flight.requests, charges_ns, strict=True):
            sent = self._sent.get(request.id)
            if sent is not None:
                sent.cpu_ns += charge_ns
            elif charge_ns and self._sampling.takes():
                self._afterwards(request, flight, charge_ns)

    def ended(
        self, request: Request, model: str, answer: Answer | None, outcome: str, now_ns: int
    ) -> None:
        """A request ended, admitted or not; `outcome` is a word of `ends.OUTCOMES`.

        `model` is empty when nobody has what the caller named.
        """
        sent = self._sent.pop(request.id, None)
        if not self._sampling.takes():
            return
        shape = _shape_of(request, "" if sent is None else sent.tokenizer)
        into = _payload_bytes(request, sent)
        estimated, measured = self._uses(request, answer, sent, shape, into)
        klass = request.klass
        provenance = None if answer is None else answer.provenance
        self._sink.put(
            DemandRecord(
                at_us=(request.arrived_ns + self._wall_offset_ns) // 1000,
                lane=ENCODER,
                model=model[:MOST_NAME],
                tenant=klass.tenant[:MOST_NAME],
                request_class=klass.name[:MOST_NAME],
                privacy_class=klass.privacy_class[:MOST_NAME],
                variant="" if sent is None else sent.variant,
                reason=_reason(request, sent, outcome),
                outcome=outcome,
                worker="" if provenance is None else provenance.worker_id,
                asked=1,
                weight=self._sampling.weight,
                on_time=int(answer is not None),
                approximation=int(provenance is not None and provenance.approximation),
                overload_level=0 if sent is None else sent.rung,
                quality=0.0 if provenance is None else provenance.quality,
                dispatches=request.dispatches,
                batch=0 if sent is None else sent.batch,
                items=shape.items,
                tokens=shape.tokens,
                longest=shape.longest_tokens,
                cached_tokens=0,
                output_limit=0,
                output_tokens=0,
                deadline_us=(request.deadline_ns - request.arrived_ns) // 1000,
                total_us=(now_ns - request.arrived_ns) // 1000,
                queue_us=_queue_ns(request, answer, now_ns) // 1000,
                first_us=0,
                slack_us=0 if sent is None else (request.deadline_ns - sent.sent_ns) // 1000,
                price=request.price,
                estimated=estimated,
                measured=measured,
            )
        )

    def _uses(
        self, request: Request, answer: Answer | None, sent: _Sent | None, shape: Shape, into: int
    ) -> tuple[Use, Use]:
        """What was foretold from others of its kind, and what it took; the kinds learn from it."""
        model, means = request.model, self._means
        preprocess, reply = ("preprocess", model), ("answer", model)
        items, tokens = max(1, shape.items), max(1, shape.tokens)
        back = int(means.mean(reply, 0.0) * items)
        estimated = Use(
            preprocess_us=int(means.mean(preprocess, 0.0) * tokens) // 1000,
            compute_us=(request.foretold_ns if sent is None else sent.predicted_ns) // 1000,
            transfer_bytes=into + back,
            peak_bytes=into + back,
            live_bytes=into + back,
        )
        if request.preprocess_ns:
            means.observe(preprocess, request.preprocess_ns / tokens)
        out = 0
        if answer is not None:
            out = sum([len(t.data) + sum(map(len, t.strings)) for t in answer.outputs])
            means.observe(reply, out / items)
        return estimated, Use(
            preprocess_us=request.preprocess_ns // 1000,
            compute_us=0 if sent is None else sent.cpu_ns // 1000,
            transfer_bytes=0 if sent is None else into + out,
            peak_bytes=into + out,
            live_bytes=into + out,
        )

    def _afterwards(self, request: Request, flight: Flight, charge_ns: int) -> None:
        """CPU time of a run whose request had ended: it is charged all the same."""
        klass = request.klass
        self._sink.put(
            DemandRecord(
                at_us=(request.arrived_ns + self._wall_offset_ns) // 1000,
                lane=ENCODER,
                model=request.model[:MOST_NAME],
                tenant=klass.tenant[:MOST_NAME],
                request_class=klass.name[:MOST_NAME],
                privacy_class=klass.privacy_class[:MOST_NAME],
                variant=flight.candidate.name,
                reason=flight.decision.reason,
                outcome=AFTERWARDS,
                worker="",
                asked=0,
                weight=self._sampling.weight,
                on_time=0,
                approximation=0,
                overload_level=flight.rung,
                quality=0.0,
                dispatches=0,
                batch=len(flight.requests),
                items=0,
                tokens=0,
                longest=0,
                cached_tokens=0,
                output_limit=0,
                output_tokens=0,
                deadline_us=0,
                total_us=0,
                queue_us=0,
                first_us=0,
                slack_us=0,
                price=request.price,
                measured=Use(compute_us=charge_ns // 1000),
            )
        )


def _share_of(flight: Flight) -> Key:
    return ("cpu", flight.pool.model, flight.candidate.name)


def _shape_of(request: Request, tokenizer: str) -> Shape:
    """Its size for the tokenizer that counted, else for any."""
    found = request.shapes.get(tokenizer)
    if found is not None:
        return found
    for shape in request.shapes.values():
        return shape
    return _NO_SHAPE


def _payload_bytes(request: Request, sent: _Sent | None) -> int:
    """Bytes of its input as it goes to a worker."""
    payload = request.payload
    if not isinstance(payload, TokenPayload):
        return carried_bytes(payload)
    if sent is not None:
        return len(payload.ids.get(sent.tokenizer, b""))
    for ids in payload.ids.values():
        return len(ids)
    return 0


def _queue_ns(request: Request, answer: Answer | None, now_ns: int) -> int:
    """How long it waited for a worker, there too where that is known."""
    if answer is not None:
        return answer.outcome.queue_ns
    until = request.dispatched_ns or now_ns
    return max(0, until - request.arrived_ns - request.preprocess_ns)


def _reason(request: Request, sent: _Sent | None, outcome: str) -> str:
    """Why this variant, or why none."""
    if sent is not None:
        return sent.reason
    admission: Admission | None = request.admission
    if admission is None:
        return ""
    if not admission.admitted:
        return admission.reason
    # Admitted, and dropped when its turn came.
    return Reason.SHED_UNLIKELY if outcome == "refused" else ""
