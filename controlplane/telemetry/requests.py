"""Requests of the encoder lane as timelines and spans: their parts, and the decisions on them."""

from __future__ import annotations

from typing import Any, NamedTuple

from controlplane import ends
from controlplane.errors import ControlPlaneError
from controlplane.policy.admission import Admission
from controlplane.policy.hands import Flight
from controlplane.policy.records import Answer, Request, RequestClass
from controlplane.telemetry.telemetry import Telemetry
from controlplane.telemetry.timeline import (
    REQUEST,
    Attributes,
    AttributeValue,
    Phase,
    RequestTimeline,
    told,
)
from controlplane.telemetry.trace import CallTrace, Send
from protos.tracing.spans import NO_ATTRIBUTES, Kind

RECEIVE = "orchid.receive"
PREPROCESS = "orchid.preprocess"
ADMISSION = "orchid.admission"
QUEUE = "orchid.queue"
DISPATCH = "orchid.dispatch"

# Names that callers choose are cut to this, whatever their door has allowed.
MOST_NAME = 64


class Part(NamedTuple):
    """A phase of a request, as a span of it."""

    phase: Phase
    attributes: Attributes = NO_ATTRIBUTES
    kind: Kind = Kind.INTERNAL
    span_id: int = 0
    fault: str = ""


def request_ended(
    telemetry: Telemetry,
    request: Request,
    answer: Answer | None,
    error: ControlPlaneError | None,
    now_ns: int,
    policy: str,
) -> None:
    """Record a request that has just ended, if it is recorded or worth keeping."""
    asked: CallTrace | None = request.trace
    outcome = ends.ANSWERED if error is None else ends.word_of(error)
    slow = now_ns - request.arrived_ns >= telemetry.slow_ns
    kept = telemetry.worth(outcome, now_ns, slow=slow)
    trace = asked if asked is not None and asked.recording else None
    late = None
    if kept and trace is None:
        late = trace = telemetry.late_trace(REQUEST, asked, request.arrived_ns)
    if trace is None and not kept:
        return
    parts = parts_of(request, trace, answer, outcome, now_ns, policy)
    attributes = request_attributes(request, answer)
    if trace is not None:
        _record(trace, request, parts, attributes, outcome, now_ns)
    if late is not None:
        telemetry.finish(late, now_ns)
    if kept:
        telemetry.keep(
            RequestTimeline(
                kind=REQUEST,
                model=request.model[:MOST_NAME],
                tenant=request.klass.tenant[:MOST_NAME],
                request_class=request.klass.name[:MOST_NAME],
                outcome=outcome,
                variant="" if answer is None else answer.provenance.variant,
                worker_id="" if answer is None else answer.provenance.worker_id,
                arrived_ns=request.arrived_ns,
                ended_ns=now_ns,
                deadline_ns=request.deadline_ns,
                wall_ms=telemetry.wall_ms(request.arrived_ns),
                trace_id="" if trace is None else trace.id,
                phases=tuple([part.phase for part in parts]),
                attributes=attributes,
            )
        )


def parts_of(
    request: Request,
    trace: CallTrace | None,
    answer: Answer | None,
    outcome: str,
    now_ns: int,
    policy: str,
) -> list[Part]:
    """What the time of a request that ended now went to, in order and without a gap.

    Where nobody asked for a trace in time only the last dispatch is known, and the time that
    admission took counts as the queue's.
    """
    offered = request.offered_ns
    tokenised: Attributes = {"orchid.tokenise_ms": request.preprocess_ns / 1e6}
    if request.admission is None:
        return [Part(Phase(PREPROCESS, request.arrived_ns, now_ns), tokenised)]
    parts = [Part(Phase(PREPROCESS, request.arrived_ns, offered), tokenised)]
    admission: Admission = request.admission
    decided = admission_attributes(request, policy)
    if not admission.admitted:
        parts.append(Part(Phase(ADMISSION, offered, now_ns), decided, fault=outcome))
        return parts
    waiting = trace.admitted_ns if trace is not None and trace.admitted_ns else offered
    parts.append(Part(Phase(ADMISSION, offered, waiting), decided))
    sends = [] if trace is None else trace.sends
    if not sends and request.dispatches:
        # Not recorded while it ran.
        sends = [Send(0, request.dispatched_ns, None)]
    for send in sends:
        if send.begun_ns > waiting:
            parts.append(Part(Phase(QUEUE, waiting, send.begun_ns)))
        ended = send.ended_ns or now_ns
        waiting = max(waiting, ended)
        fault = send.fault or (outcome if answer is None and not send.ended_ns else "")
        # The first run of a cascade has ended before the one that gave the answer.
        given = None if fault or send.ended_ns else answer
        attributes = dispatch_attributes(send.what, given)
        phase = Phase(DISPATCH, send.begun_ns, ended)
        parts.append(Part(phase, attributes, Kind.CLIENT, send.span_id, fault))
    if now_ns > waiting:
        parts.append(Part(Phase(QUEUE, waiting, now_ns), fault="" if answer else outcome))
    return parts


def _record(
    trace: CallTrace,
    request: Request,
    parts: list[Part],
    attributes: Attributes,
    outcome: str,
    now_ns: int,
) -> None:
    if trace.begun_ns < request.arrived_ns:
        trace.add(RECEIVE, trace.begun_ns, request.arrived_ns)
    add_parts(trace, REQUEST, parts, attributes, request.arrived_ns)
    trace.attributes.update(attributes)
    trace.answered_ns = now_ns
    if outcome != ends.ANSWERED:
        trace.failed(outcome)
        trace.happened(outcome, now_ns)


def add_parts(
    trace: CallTrace, kind: str, parts: list[Part], attributes: Attributes, arrived_ns: int
) -> None:
    """The parts as spans.

    One that nobody recorded while it ran has no spans of its worker in its last dispatch, but
    what that has told of it since.
    """
    for phase, more, its_kind, span_id, fault in parts:
        made = trace.add(*phase, more, kind=its_kind, span_id=span_id, fault=fault)
        if its_kind is Kind.CLIENT and not span_id:
            inside = told(kind, attributes, arrived_ns, phase.begun_ns, phase.ended_ns)
            for name, begun_ns, ended_ns in inside:
                trace.add(name, begun_ns, ended_ns, parent_id=made)


def request_attributes(request: Request, answer: Answer | None) -> dict[str, AttributeValue]:
    """What is said of a whole request: shapes, times and the deployment, never content."""
    klass = request.klass
    attributes: dict[str, AttributeValue] = {
        "orchid.model": request.model[:MOST_NAME],
        "orchid.deadline_ms": request.budget_ns / 1e6,
        "orchid.dispatches": request.dispatches,
    }
    attributes |= caller_attributes(klass)
    if answer is not None:
        provenance, outcome = answer.provenance, answer.outcome
        attributes |= {
            "orchid.variant": provenance.variant,
            "orchid.reason": provenance.reason,
            "orchid.approximation": provenance.approximation,
            "orchid.manifest_digest": provenance.manifest_digest,
            "orchid.worker_id": provenance.worker_id,
            "orchid.input_tokens": outcome.input_tokens,
            "orchid.execute_ms": outcome.execute_ns / 1e6,
            "orchid.slack_at_answer_ms": outcome.slack_at_answer_ns / 1e6,
            "orchid.charged_cpu_ms": outcome.charged_cpu_ns / 1e6,
        }
        stages = provenance.stages
        if stages is not None:
            attributes |= {
                "orchid.first_variant": stages.first_variant,
                "orchid.confidence": stages.confidence,
                "orchid.escalated": stages.escalated,
            }
    return attributes


def caller_attributes(klass: RequestClass) -> dict[str, AttributeValue]:
    """Who asks, as far as he says so."""
    named = {"orchid.tenant": klass.tenant[:MOST_NAME], "orchid.class": klass.name[:MOST_NAME]}
    return {key: name for key, name in named.items() if name}


def admission_attributes(request: Request, policy: str) -> dict[str, AttributeValue]:
    """What the door decided and the numbers it rests on."""
    admission: Admission = request.admission
    attributes: dict[str, AttributeValue] = {
        "orchid.policy": policy,
        "orchid.admitted": admission.admitted,
        "orchid.queue_depth": request.ahead,
        "orchid.slack_ms": (request.deadline_ns - request.offered_ns) / 1e6,
        "orchid.predicted_ms": admission.completion_ns / 1e6,
        "orchid.eligible_variants": len(admission.variants),
    }
    if not admission.admitted:
        attributes["orchid.refusal"] = admission.reason
        attributes["orchid.retry_after_ms"] = admission.retry_after_ms
    return attributes


def dispatch_attributes(flight: Any, answer: Answer | None) -> dict[str, AttributeValue]:
    """Which run a request went into and why that one; `flight` None is not known any more."""
    attributes: dict[str, AttributeValue] = {}
    if isinstance(flight, Flight):
        decision = flight.decision
        attributes |= {
            "orchid.variant": flight.candidate.name,
            "orchid.reason": decision.reason,
            "orchid.slack_ms": decision.slack_ns / 1e6,
            "orchid.predicted_ms": flight.predicted_ns / 1e6,
            "orchid.work_ahead_ms": decision.work_ahead_ns / 1e6,
            "orchid.chance": flight.chance,
            "orchid.batch_id": flight.id,
            "orchid.batch_size": len(flight.requests),
            "orchid.overload_level": flight.rung,
        }
    if answer is not None:
        attributes |= {
            "orchid.worker_id": answer.provenance.worker_id,
            "orchid.execute_ms": answer.outcome.execute_ns / 1e6,
        }
        if not attributes.get("orchid.variant"):
            attributes |= {
                "orchid.variant": answer.provenance.variant,
                "orchid.reason": answer.provenance.reason,
                "orchid.batch_size": answer.outcome.batch_size,
            }
    return attributes
