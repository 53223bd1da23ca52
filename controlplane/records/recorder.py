"""Makes the records of requests of the encoder lane, when they are sent, have run and end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from controlplane.policy.admission import Admission
from controlplane.policy.hands import Flight, parts_of
from controlplane.policy.parts import shares
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
    """The last dispatch of a request, and what all its runs that ended took.

    `foretold_bytes` and `peak_bytes` are of the engine's memory: in the last run, and at most.
    """

    __slots__ = ("batch", "cpu_ns", "foretold_bytes", "peak_bytes", "predicted_ns", "reason",
                 "rung", "sent_ns", "tokenizer", "variant")  # fmt: skip

    def __init__(
        self, flight: Flight, predicted_ns: int, foretold_bytes: int, before: _Sent | None
    ) -> None:
        self.cpu_ns: int = 0 if before is None else before.cpu_ns
        self.peak_bytes: int = 0 if before is None else before.peak_bytes
        self.batch = len(flight.requests)
        self.predicted_ns = predicted_ns
        self.foretold_bytes = foretold_bytes
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
        # The engine's memory for a token: of a variant's runs of one size, and of a model's.
        self._peaks = FadingMeans()
        # Of requests that were sent and have not ended.
        self._sent: dict[int, _Sent] = {}

    def __len__(self) -> int:
        return len(self._sent)

    def sent(self, flight: Flight) -> None:
        """A run is on its way to its worker."""
        # Predictions are of time; on a machine that others use not all of that is CPU time.
        share = self._means.mean(_share_of(flight), 1.0)
        parts = parts_of(flight, int(flight.predicted_ns * share))
        tokens = _tokens_of(flight)
        each = self._peaks.mean(_size_of(flight, tokens), self._token_bytes(flight.pool.model))
        for request, part, count in zip(flight.requests, parts, tokens, strict=True):
            before = self._sent.get(request.id)
            self._sent[request.id] = _Sent(flight, part, int(each * count), before)

    def ran(self, flight: Flight, run_ns: int, charges_ns: Sequence[int], peak_bytes: int) -> None:
        """A run ended that took so much at its most; before its requests hear of it."""
        if run_ns:
            self._means.observe(_share_of(flight), sum(charges_ns) / run_ns)
        tokens = _tokens_of(flight)
        if peak_bytes:
            each = peak_bytes / max(1, sum(tokens))
            self._peaks.observe(_size_of(flight, tokens), each)
            self._peaks.observe((flight.pool.model,), each)
        peaks = shares(peak_bytes, tokens)
        for request, charge_ns, peak in zip(flight.requests, charges_ns, peaks, strict=True):
            sent = self._sent.get(request.id)
            if sent is not None:
                sent.cpu_ns += charge_ns
                sent.peak_bytes = max(sent.peak_bytes, peak)
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
                deadline_us=request.budget_ns // 1000,
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
        foretold = int(self._token_bytes(model) * tokens) if sent is None else sent.foretold_bytes
        estimated = Use(
            preprocess_us=int(means.mean(preprocess, 0.0) * tokens) // 1000,
            compute_us=(request.foretold_ns if sent is None else sent.predicted_ns) // 1000,
            transfer_bytes=into + back,
            peak_bytes=into + back + foretold,
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
            peak_bytes=into + out + (0 if sent is None else sent.peak_bytes),
            live_bytes=into + out,
        )

    def _token_bytes(self, model: str) -> float:
        """What a token of any run of the model took of the engine's memory, 0 before the first."""
        return self._peaks.mean((model,), 0.0)

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


def _tokens_of(flight: Flight) -> list[int]:
    tokenizer = flight.candidate.tokenizer
    return [request.shapes[tokenizer].tokens for request in flight.requests]


def _size_of(flight: Flight, tokens: Sequence[int]) -> Key:
    """Runs of a variant whose tokens differ by less than twice: their memory is nearly linear."""
    return (flight.pool.model, flight.candidate.name, str(sum(tokens).bit_length()))


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
