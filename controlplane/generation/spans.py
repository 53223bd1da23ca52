"""Generations as timelines and spans: shapes, times and the decision, never content."""

from __future__ import annotations

from typing import NamedTuple

from controlplane import ends
from controlplane.generation.plan import Plan
from controlplane.generation.progress import Progress
from controlplane.generation.records import GenerationAsk
from controlplane.policy.decode import Choice
from controlplane.telemetry.requests import (
    ADMISSION,
    DISPATCH,
    MOST_NAME,
    PREPROCESS,
    RECEIVE,
    Part,
    add_parts,
    caller_attributes,
)
from controlplane.telemetry.telemetry import Telemetry
from controlplane.telemetry.timeline import (
    GENERATION,
    Attributes,
    AttributeValue,
    Phase,
    RequestTimeline,
)
from controlplane.telemetry.trace import CallTrace, Kind, Send


class Ended(NamedTuple):
    """A generation that has just ended; `plan` is None when it never got that far.

    `model` is empty when the caller named none that is here.
    """

    model: str
    ask: GenerationAsk
    plan: Plan | None
    progress: Progress
    arrived_ns: int
    outcome: str


def generation_ended(
    telemetry: Telemetry, asked: CallTrace | None, ended: Ended, now_ns: int
) -> None:
    """Record a generation that has just ended, if it is recorded or worth keeping."""
    kept = telemetry.worth(ended.outcome, now_ns, slow=_slow(telemetry, ended, now_ns))
    trace = asked if asked is not None and asked.recording else None
    late = None
    if kept and trace is None:
        late = trace = telemetry.late_trace(GENERATION, asked, ended.arrived_ns)
    if trace is None and not kept:
        return
    parts = parts_of(ended, trace, now_ns)
    attributes = span_attributes(ended, now_ns - ended.arrived_ns)
    if trace is not None:
        _record(trace, ended, parts, attributes, now_ns)
    if late is not None:
        telemetry.finish(late, now_ns)
    if kept:
        telemetry.keep(_timeline(telemetry, ended, trace, parts, attributes, now_ns))


def parts_of(ended: Ended, trace: CallTrace | None, now_ns: int) -> list[Part]:
    """What the time of a generation that ended now went to, in order."""
    plan, progress = ended.plan, ended.progress
    failed = "" if ended.outcome == ends.ANSWERED else ended.outcome
    if plan is None:
        return [Part(Phase(PREPROCESS, ended.arrived_ns, now_ns), fault=failed)]
    parts = [Part(Phase(PREPROCESS, ended.arrived_ns, plan.planned_ns))]
    sends = [] if trace is None else list(trace.sends)
    if not sends and progress.sent_ns:
        # Not recorded while it ran.
        sends = [Send(0, progress.sent_ns, progress.choice)]
    decided = _admission_attributes(progress.choice)
    if not sends:
        phase = Phase(ADMISSION, plan.planned_ns, now_ns)
        return [*parts, Part(phase, decided, fault=failed)]
    parts.append(Part(Phase(ADMISSION, plan.planned_ns, sends[0].begun_ns), decided))
    for send in sends:
        phase = Phase(DISPATCH, send.begun_ns, send.ended_ns or now_ns)
        fault = send.fault or ("" if send.ended_ns else failed)
        attributes = _dispatch_attributes(progress, last=send is sends[-1])
        parts.append(Part(phase, attributes, Kind.CLIENT, send.span_id, fault))
    return parts


def _slow(telemetry: Telemetry, ended: Ended, now_ns: int) -> bool:
    progress = ended.progress
    first_ns = progress.first_token_ns or now_ns - ended.arrived_ns
    late = progress.first_token_ns and not progress.first_in_target
    return bool(late) or first_ns >= telemetry.slow_ns


def _record(
    trace: CallTrace, ended: Ended, parts: list[Part], attributes: Attributes, now_ns: int
) -> None:
    arrived, progress = ended.arrived_ns, ended.progress
    if trace.begun_ns < arrived:
        trace.add(RECEIVE, trace.begun_ns, arrived)
    add_parts(trace, GENERATION, parts, attributes, arrived)
    trace.attributes.update(attributes)
    trace.answered_ns = now_ns
    if progress.first_token_ns:
        trace.happened("first_token", arrived + progress.first_token_ns)
    if ended.outcome != ends.ANSWERED:
        trace.failed(ended.outcome)
        trace.happened(ended.outcome, now_ns)


def _timeline(
    telemetry: Telemetry,
    ended: Ended,
    trace: CallTrace | None,
    parts: list[Part],
    attributes: Attributes,
    now_ns: int,
) -> RequestTimeline:
    provenance = ended.progress.provenance
    return RequestTimeline(
        kind=GENERATION,
        model=ended.model,
        tenant=ended.ask.klass.tenant[:MOST_NAME],
        request_class=ended.ask.klass.name[:MOST_NAME],
        outcome=ended.outcome,
        variant="" if provenance is None else provenance.variant,
        worker_id="" if provenance is None else provenance.worker_id,
        arrived_ns=ended.arrived_ns,
        ended_ns=now_ns,
        deadline_ns=0 if ended.plan is None else ended.plan.deadline_ns,
        wall_ms=telemetry.wall_ms(ended.arrived_ns),
        trace_id="" if trace is None else trace.id,
        phases=tuple([part.phase for part in parts]),
        attributes=attributes,
    )


def _admission_attributes(choice: Choice | None) -> dict[str, AttributeValue]:
    if choice is None:
        return {}
    return {
        "orchid.admitted": bool(choice.routes),
        "orchid.reason": choice.reason,
        "orchid.routes": len(choice.routes),
        "orchid.predicted_ms": choice.predicted_ns / 1e6,
        "orchid.alone_ms": choice.alone_ns / 1e6,
        "orchid.first_token_target_ms": choice.target_ns / 1e6,
        "orchid.token_target_ms": choice.token_ns / 1e6,
        "orchid.retry_after_ms": choice.retry_after_ns / 1e6,
    }


def _dispatch_attributes(progress: Progress, *, last: bool) -> dict[str, AttributeValue]:
    provenance = progress.provenance
    if provenance is None or not last:
        return {}
    return {"orchid.variant": provenance.variant, "orchid.worker_id": provenance.worker_id}


def span_attributes(ended: Ended, total_ns: int) -> dict[str, AttributeValue]:
    """Attributes of a generation that ended after `total_ns`."""
    ask, progress = ended.ask, ended.progress
    attributes: dict[str, AttributeValue] = {
        "orchid.model": ended.model,
        "orchid.answers": ask.limits.n,
        "orchid.max_tokens": ask.limits.max_tokens,
        "orchid.sends": progress.sends,
        "orchid.generated_tokens": progress.tokens,
        "orchid.total_ms": total_ns / 1e6,
    }
    attributes |= caller_attributes(ask.klass)
    choice, provenance, usage = progress.choice, progress.provenance, progress.usage
    if choice is not None:
        attributes |= {
            "orchid.reason": choice.reason,
            "orchid.first_token_target_ms": choice.target_ns / 1e6,
            "orchid.first_token_predicted_ms": choice.predicted_ns / 1e6,
        }
    if provenance is not None:
        attributes |= {
            "orchid.variant": provenance.variant,
            "orchid.approximation": provenance.approximation,
            "orchid.manifest_digest": provenance.manifest_digest,
            "orchid.worker_id": provenance.worker_id,
            "orchid.overload_level": provenance.overload_level,
        }
    if ended.plan is not None and ended.plan.cut:
        attributes["orchid.output_cut"] = ended.plan.ask.limits.max_tokens
    if progress.prompt_tokens:
        attributes |= {
            "orchid.input_tokens": progress.prompt_tokens,
            "orchid.cached_tokens": progress.cached_tokens,
        }
    if progress.first_token_ns:
        attributes["orchid.first_token_ms"] = progress.first_token_ns / 1e6
    if progress.finish:
        attributes["orchid.finish"] = progress.finish
    if usage is not None:
        attributes |= {
            "orchid.queue_ms": usage.queue_ns / 1e6,
            "orchid.mean_gap_ms": usage.mean_gap_ns / 1e6,
            "orchid.max_gap_ms": usage.max_gap_ns / 1e6,
            "orchid.prefill_cpu_ms": usage.prefill_cpu_ns / 1e6,
            "orchid.decode_cpu_ms": usage.decode_cpu_ns / 1e6,
            "orchid.preemptions": usage.preemptions,
        }
    return attributes
