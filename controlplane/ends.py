"""How requests end: the errors and answers of each ending."""

from __future__ import annotations

from collections.abc import Mapping

from controlplane.errors import (
    Cancelled,
    ContextOverflow,
    ControlPlaneError,
    Forbidden,
    InvalidRequest,
    NotFound,
    Refused,
    TooLate,
    Unauthenticated,
    Unavailable,
    Unsatisfiable,
    WorkerFault,
)
from controlplane.policy.admission import Admission, Refusal
from controlplane.policy.hands import Flight, parts_of
from controlplane.policy.records import Answer, Outcome, Provenance, Request
from controlplane.policy.scheduler import Shed
from controlplane.registry import Membership, ModelInfo
from controlplane.work import BatchDone, ItemDone, ItemStatus

_WORDS: Mapping[type[BaseException], str] = {
    TooLate: "too-late",
    Refused: "refused",
    Unavailable: "unavailable",
    Cancelled: "cancelled",
    InvalidRequest: "invalid",
    ContextOverflow: "invalid",
    NotFound: "not-found",
    Unsatisfiable: "unsatisfiable",
    WorkerFault: "worker-fault",
    Forbidden: "forbidden",
}
# How calls end that never were requests.
_DOOR_WORDS: Mapping[type[BaseException], str] = {
    Unauthenticated: "unauthenticated",
    Forbidden: "forbidden",
}
ANSWERED = "answered"
OUTCOMES = (ANSWERED, *dict.fromkeys(_WORDS.values()))

_REFUSALS = {
    Refusal.QUEUE_FULL: "the queue is full",
    Refusal.WORK_BOUND: "the queue holds as much predicted work as it may",
    Refusal.BEHIND_WORK: "the work ahead leaves no time before the deadline",
    Refusal.DEFERRED: "under overload requests of deferrable classes wait outside",
    Refusal.PROTECTING: "nobody is let in until those who were are safe",
    Refusal.TENANT_QUEUE: "the tenant has as many requests queued as it may",
    Refusal.TENANT_WORK: "the tenant has as much predicted work queued as it may",
    Refusal.TENANT_RATE: "the tenant uses as much CPU time as it may",
}


def word_of(error: BaseException) -> str:
    """The outcome under which an error is counted."""
    for kind in type(error).__mro__:
        word = _WORDS.get(kind) or _DOOR_WORDS.get(kind)
        if word is not None:
            return word
    return "failed"


def refusal(request: Request, admission: Admission) -> ControlPlaneError:
    """The error of a request that was not admitted."""
    asked_ms = request.budget_ns / 1e6
    if admission.reason == Refusal.EXPIRED:
        return TooLate("the deadline had passed before the request could be queued")
    if admission.reason == Refusal.TOO_SHORT:
        return TooLate(
            f"the deadline of {asked_ms:.1f} ms is shorter than the fastest eligible variant "
            f"needs (at least {admission.completion_ns / 1e6:.1f} ms)"
        )
    return Refused(
        f"{_REFUSALS[admission.reason]} (deadline {asked_ms:.1f} ms, "
        f"done after {admission.completion_ns / 1e6:.1f} ms at best)",
        admission.retry_after_ms,
    )


def shed(step: Shed) -> ControlPlaneError:
    """The error of an admitted request that was dropped when its turn came."""
    slack_ms = step.decision.slack_ns / 1e6
    if slack_ms <= 0:
        return TooLate("the deadline passed while the request was queued")
    return Refused(
        f"an answer in the {slack_ms:.1f} ms left is unlikely "
        f"(needs {step.decision.predicted_ns / 1e6:.1f} ms); dropped for those behind it",
        step.retry_after_ms,
    )


def expired(request: Request) -> ControlPlaneError:
    """The error of a request whose time is up."""
    asked_ms = request.budget_ns / 1e6
    where = "it was running" if request.dispatches else "it was queued"
    return TooLate(f"the deadline of {asked_ms:.1f} ms passed while {where}")


def unready(model: str, membership: Membership | None) -> ControlPlaneError:
    """The error when nobody can serve a model now."""
    if membership is None:
        return Unavailable(f"no live worker serves model {model!r}", retry_after_ms=1000)
    info = membership.model
    if info.ready:
        return Unavailable(f"no live worker of model {model!r} takes work now", 1000)
    progress = f" ({info.progress:.0%})" if not info.failure else f": {info.failure}"
    return Unavailable(f"model {model!r} is {info.state.value}{progress}", retry_after_ms=1000)


def failure(item: ItemDone, model: str) -> ControlPlaneError:
    """The error of an item that did not end well on its worker."""
    detail = f": {item.message}" if item.message else ""
    if item.status is ItemStatus.INVALID_ARGUMENT:
        return InvalidRequest(item.message or f"model {model!r} does not accept this input")
    if item.status is ItemStatus.EXPIRED:
        return TooLate("the deadline passed before the worker could run the request")
    if item.status is ItemStatus.INTERNAL:
        return WorkerFault(f"the worker failed while executing model {model!r}{detail}")
    return Unavailable(f"the worker did not execute model {model!r}{detail}", retry_after_ms=100)


def answer(
    *,
    request: Request,
    place: int,
    flight: Flight,
    item: ItemDone,
    done: BatchDone,
    info: ModelInfo,
    worker_id: str,
    now_ns: int,
) -> Answer:
    """The answer of a request, with where it came from and what it cost.

    The CPU time of a shared run is charged by tokens at their cohorts' prices.
    """
    shape = request.shapes[flight.candidate.tokenizer]
    return Answer(
        outputs=item.outputs,
        provenance=Provenance(
            model=info.name,
            model_version=info.version,
            variant=flight.candidate.name,
            manifest_digest=info.manifest_digest,
            reason=flight.decision.reason,
            approximation=flight.approximations[place],
            quality=flight.candidate.quality,
            worker_id=worker_id,
            overload_level=flight.rung,
        ),
        outcome=Outcome(
            items=shape.items,
            input_tokens=shape.tokens if flight.candidate.tokenizer else 0,
            predicted_cpu_ns=parts_of(flight, flight.predicted_ns)[place],
            charged_cpu_ns=parts_of(flight, done.cpu_ns)[place],
            preprocess_ns=request.preprocess_ns,
            queue_ns=flight.sent_ns - request.arrived_ns - request.preprocess_ns + done.queue_ns,
            execute_ns=done.run_ns,
            total_ns=now_ns - request.arrived_ns,
            slack_at_dispatch_ns=request.deadline_ns - flight.sent_ns,
            slack_at_answer_ns=request.deadline_ns - now_ns,
            batch_size=len(flight.requests),
            dispatches=request.dispatches,
        ),
        labels=info.labels,
    )
