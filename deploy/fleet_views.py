"""What a control plane and its workers say of themselves, as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from deploy.cascade_views import CascadeView, cascade_views
from deploy.charge_views import NO_CHARGES, ChargeView, CohortView, charge_view, cohort_views
from deploy.memory_views import NO_MEMORY, MemoryView, memory_view
from deploy.tenant_views import (
    NO_OVERLOAD,
    NO_RELOADS,
    OverloadView,
    ReloadView,
    TenantView,
    overload_view,
    reload_view,
    tenant_views,
)
from protos.orchid.v1 import common_pb2, fleet_pb2, worker_pb2


@dataclass(frozen=True, slots=True)
class WorkerView:
    """One worker as the control plane sees it; CPU in percent of one core.

    `trouble` is what stands in the way of using it, empty when nothing is known to.
    """

    id: str
    address: str
    worker_class: str
    state: str
    pid: int
    threads: int
    cpu_model: str
    simd: str
    engine: str
    queued: int
    running: int
    in_flight: int
    completed: int
    cpu_percent: float
    resident_bytes: int
    expired_executed: int
    since_report_ms: float
    charges: ChargeView = NO_CHARGES
    memory: MemoryView = NO_MEMORY
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class VariantView:
    """One variant of a pool; `predicted_p50_us` at its profile's reference length.

    `quality` is 0 when it is not `measured`.
    """

    name: str
    routable: bool
    note: str
    quality: float
    measured: bool
    predicted_p50_us: float
    correction: float
    sigma: float
    answered: int


@dataclass(frozen=True, slots=True)
class DecileView:
    """Runs whose chance to be on time was within one tenth: mean chance and what came true."""

    runs: int
    predicted: float
    observed: float


@dataclass(frozen=True, slots=True)
class PoolView:
    """One model and the workers that serve it; `calibration` has ten deciles of chances.

    `door_margin` is what the door multiplies foretold waits by, `overload` its ladder's state,
    `cohorts` are those whose requests take more than their size says.
    """

    model: str
    manifest_digest: str
    state: str
    workers: int
    queued: int
    in_flight: int
    predicted_work_ms: float
    variants: tuple[VariantView, ...]
    outcomes: Mapping[str, int]
    calibration: tuple[DecileView, ...]
    door_margin: float
    overload: OverloadView = NO_OVERLOAD
    cohorts: tuple[CohortView, ...] = ()
    cascades: tuple[CascadeView, ...] = ()


@dataclass(frozen=True, slots=True)
class LaneView:
    """One model on one decode worker: its profile, its arena and what runs there.

    `quality` is 0 when it is not `measured`. The four times are those of a step by itself,
    of a prompt token, of a decoding sequence, and of a thousand tokens it attends to.
    """

    worker: str
    variant: str
    quality: float
    measured: bool
    open: int
    most_tokens: int
    correction: float
    answered: int
    step_ms: float
    prompt_token_ms: float
    sequence_ms: float
    thousand_cached_ms: float
    waiting: int
    prefilling: int
    decoding: int
    pending_prompt_tokens: int
    cached_tokens: int
    total_blocks: int
    free_blocks: int
    evictable_blocks: int
    generated_tokens: int
    prefix_hit_tokens: int
    preemptions: int
    shed: int


@dataclass(frozen=True, slots=True)
class GeneratorView:
    """A model that generates text and the decode workers that have it."""

    model: str
    manifest_digest: str
    state: str
    open: int
    redispatched: int
    lanes: tuple[LaneView, ...]
    outcomes: Mapping[str, int]
    overload: OverloadView = NO_OVERLOAD
    cohorts: tuple[CohortView, ...] = ()


@dataclass(frozen=True, slots=True)
class FleetStatus:
    """The control plane's own account; `gauges` must be zero when nothing is in flight."""

    controlplane_id: str
    version: str
    policy: str
    uptime_s: float
    workers: tuple[WorkerView, ...]
    pools: tuple[PoolView, ...]
    expired_work_executed: int
    preprocess_queued: int
    preprocess_running: int
    process_cpu_s: float
    resident_bytes: int
    gauges: Mapping[str, int]
    generators: tuple[GeneratorView, ...] = ()
    tenants: tuple[TenantView, ...] = ()
    reloads: ReloadView = NO_RELOADS

    def pool(self, model: str) -> PoolView:
        """The pool of a model; KeyError names those that exist."""
        for pool in self.pools:
            if pool.model == model:
                return pool
        raise KeyError(f"no pool {model!r}; there are {[pool.model for pool in self.pools]}")

    def ready_workers(self) -> int:
        """Workers that take work."""
        return sum(worker.state == "ready" for worker in self.workers)


@dataclass(frozen=True, slots=True)
class ModelProgress:
    """How far a worker is with one model."""

    model: str
    state: str
    progress: float
    failure: str


def fleet_status(message: fleet_pb2.GetStatusResponse) -> FleetStatus:
    """The whole account of a control plane."""
    return FleetStatus(
        controlplane_id=message.controlplane_id,
        version=message.version,
        policy=message.policy,
        uptime_s=message.uptime_s,
        workers=tuple(_worker(worker) for worker in message.workers),
        pools=tuple(_pool(pool) for pool in message.pools),
        expired_work_executed=message.expired_work_executed,
        preprocess_queued=message.preprocess_queued,
        preprocess_running=message.preprocess_running,
        process_cpu_s=message.process_cpu_s,
        resident_bytes=message.resident_bytes,
        gauges=dict(message.gauges),
        generators=tuple(map(_generator, message.generators)),
        tenants=tenant_views(message.tenants),
        reloads=reload_view(message.reloads),
    )


def models_progress(message: worker_pb2.DescribeResponse) -> tuple[ModelProgress, ...]:
    """How far a worker is with each of its models."""
    return tuple(
        ModelProgress(
            model=model.name,
            state=_state_name(model.state),
            progress=model.progress,
            failure=model.failure,
        )
        for model in message.models
    )


def _state_name(state: common_pb2.ReadinessState.ValueType) -> str:
    return common_pb2.ReadinessState.Name(state).removeprefix("READINESS_STATE_").lower()


def _worker(message: fleet_pb2.WorkerStatus) -> WorkerView:
    return WorkerView(
        id=message.hello.worker_id,
        address=message.hello.address,
        worker_class=fleet_pb2.WorkerClass.Name(message.hello.worker_class)
        .removeprefix("WORKER_CLASS_")
        .lower(),
        state=message.state,
        pid=message.hello.process_id,
        threads=message.hello.threads,
        cpu_model=message.hello.cpu_model,
        simd=message.hello.simd,
        engine=message.hello.engine_version,
        queued=message.load.queued_items,
        running=message.load.running_items,
        in_flight=message.in_flight_items,
        completed=message.load.completed_items,
        cpu_percent=message.load.process_cpu_percent,
        resident_bytes=message.load.resident_bytes,
        expired_executed=message.load.expired_items_executed,
        since_report_ms=message.since_report_ms,
        charges=charge_view(message),
        memory=memory_view(message.memory),
        trouble=message.trouble,
    )


def _generator(message: fleet_pb2.GeneratorStatus) -> GeneratorView:
    return GeneratorView(
        model=message.model,
        manifest_digest=message.manifest_digest,
        state=message.state,
        open=message.open,
        redispatched=message.redispatched,
        lanes=tuple(_lane(lane) for lane in message.lanes),
        outcomes=dict(message.outcomes),
        overload=overload_view(message.overload),
        cohorts=cohort_views(message.cohorts),
    )


def _lane(message: fleet_pb2.LaneStatus) -> LaneView:
    profile, load = message.profile, message.load
    return LaneView(
        worker=message.worker_id,
        variant=message.variant,
        quality=message.quality,
        measured=message.HasField("quality"),
        open=message.open,
        most_tokens=message.most_tokens,
        correction=message.correction,
        answered=message.answered,
        step_ms=profile.step_us / 1e3,
        prompt_token_ms=profile.prefill_us_per_token / 1e3,
        sequence_ms=profile.sequence_us / 1e3,
        thousand_cached_ms=profile.cached_us_per_token,
        waiting=load.waiting,
        prefilling=load.prefilling,
        decoding=load.decoding,
        pending_prompt_tokens=load.pending_prompt_tokens,
        cached_tokens=load.cached_tokens,
        total_blocks=load.total_blocks,
        free_blocks=load.free_blocks,
        evictable_blocks=load.evictable_blocks,
        generated_tokens=load.generated_tokens,
        prefix_hit_tokens=load.prefix_hit_tokens,
        preemptions=load.preemptions,
        shed=load.shed,
    )


def _pool(message: fleet_pb2.PoolStatus) -> PoolView:
    return PoolView(
        model=message.model,
        manifest_digest=message.manifest_digest,
        state=message.state,
        workers=message.workers,
        queued=message.queued,
        in_flight=message.in_flight,
        predicted_work_ms=message.predicted_work_ms,
        variants=tuple(
            VariantView(
                name=variant.name,
                routable=variant.routable,
                note=variant.note,
                quality=variant.quality,
                measured=variant.HasField("quality"),
                predicted_p50_us=variant.predicted_p50_us,
                correction=variant.correction,
                sigma=variant.sigma,
                answered=variant.answered,
            )
            for variant in message.variants
        ),
        outcomes=dict(message.outcomes),
        calibration=tuple(DecileView(d.runs, d.predicted, d.observed) for d in message.calibration),
        door_margin=message.door_margin,
        overload=overload_view(message.overload),
        cohorts=cohort_views(message.cohorts),
        cascades=cascade_views(message.cascades),
    )
