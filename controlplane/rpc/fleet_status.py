"""What GetStatus answers: the state of the house as one message."""

from __future__ import annotations

from dataclasses import dataclass

import psutil

from controlplane.deployed import ModelInfo
from controlplane.deployment import deployment_of
from controlplane.dispatcher import Dispatcher
from controlplane.generation.quality import measured_quality
from controlplane.generation.service import Generations
from controlplane.policy.pool import Pool
from controlplane.preprocess import Preprocessor
from controlplane.registry import Registry, WorkerSession
from controlplane.rpc.wire import (
    write_decode_load,
    write_decode_profile,
    write_hello,
    write_load,
)
from protos.orchid.v1 import fleet_pb2


@dataclass(frozen=True, slots=True)
class StatusSource:
    """What a status rests on besides registry and dispatcher."""

    controlplane_id: str
    version: str
    started_ns: int
    preprocessor: Preprocessor
    process: psutil.Process


def status_response(
    source: StatusSource,
    registry: Registry,
    dispatcher: Dispatcher,
    generations: Generations,
    now_ns: int,
) -> fleet_pb2.GetStatusResponse:
    """Workers, pools, counters and gauges as they are at `now_ns`."""
    saturation = source.preprocessor.saturation()
    cpu = source.process.cpu_times()
    reported = sum(s.load.expired_items_executed for s in registry.workers())
    return fleet_pb2.GetStatusResponse(
        controlplane_id=source.controlplane_id,
        version=source.version,
        policy=dispatcher.policy,
        uptime_s=(now_ns - source.started_ns) / 1e9,
        workers=[
            _worker(dispatcher, generations, session, now_ns) for session in registry.workers()
        ],
        pools=[_pool(registry, dispatcher, pool) for pool in dispatcher.pools()],
        # Workers and control plane see the same runs, each by its own clock.
        expired_work_executed=max(dispatcher.counters.expired_work_executed, reported),
        preprocess_queued=saturation.queued,
        preprocess_running=saturation.running,
        process_cpu_s=cpu.user + cpu.system,
        resident_bytes=source.process.memory_info().rss,
        gauges=dispatcher.gauges()
        | generations.gauges()
        | {"preprocess": saturation.queued + saturation.running},
        generators=[
            _generator(registry, generations, model)
            for model in registry.models()
            if model.generates
        ],
    )


def _worker(
    dispatcher: Dispatcher, generations: Generations, session: WorkerSession, now_ns: int
) -> fleet_pb2.WorkerStatus:
    lane = generations.lanes.lane(session.number)
    if lane is not None:
        held = len(lane.guests)
    else:
        held = sum(len(flight.requests) for flight in dispatcher.flights(session))
    return fleet_pb2.WorkerStatus(
        hello=write_hello(session.identity),
        load=write_load(session.load),
        state=session.state.value,
        in_flight_items=held,
        since_report_ms=(now_ns - session.heard_ns) / 1e6,
    )


def _generator(
    registry: Registry, generations: Generations, model: ModelInfo
) -> fleet_pb2.GeneratorStatus:
    return fleet_pb2.GeneratorStatus(
        model=model.name,
        manifest_digest=model.manifest_digest,
        state=_state(registry, model.name),
        open=generations.open_of(model.name),
        lanes=_lanes(registry, generations, model),
        outcomes=generations.outcomes(model.name),
        redispatched=generations.redispatched(model.name),
    )


def _lanes(
    registry: Registry, generations: Generations, model: ModelInfo
) -> list[fleet_pb2.LaneStatus]:
    """The variants that decode workers have ready."""
    settings, membership = model.generation, registry.membership(model.name)
    assert settings is not None
    found = []
    for lane in generations.lanes.all():
        session = lane.session
        ready = membership.workers.get(session.number, ()) if membership is not None else ()
        for name in sorted(ready):
            variant = session.models[model.name].variant(name)
            if variant.decode is None:
                continue
            route = lane.route(model.name, settings.context, variant)
            found.append(
                fleet_pb2.LaneStatus(
                    worker_id=session.identity.id,
                    variant=name,
                    quality=measured_quality(variant),
                    open=lane.open(model.name),
                    most_tokens=route.most_tokens,
                    correction=route.correction,
                    answered=lane.answered[model.name, name],
                    profile=write_decode_profile(variant.decode),
                    load=write_decode_load(route.load),
                )
            )
    return found


def _pool(registry: Registry, dispatcher: Dispatcher, pool: Pool) -> fleet_pb2.PoolStatus:
    counters = dispatcher.counters
    membership = registry.membership(pool.model)
    info = deployment_of(pool.table) if membership is None else membership.model
    answered = counters.variants.get(pool.model, {})
    return fleet_pb2.PoolStatus(
        model=pool.model,
        manifest_digest=info.manifest_digest,
        state=_state(registry, pool.model),
        workers=pool.live,
        queued=pool.queued,
        in_flight=sum(
            len(flight.requests)
            for session in registry.workers()
            for flight in dispatcher.flights(session)
            if flight.pool is pool
        ),
        predicted_work_ms=pool.own_work_ns() / 1e6,
        variants=[
            fleet_pb2.VariantStatus(
                name=candidate.name,
                routable=candidate.name not in pool.table.dominated,
                note=_note(pool, candidate.name),
                quality=candidate.quality if info.has_evidence(candidate.name) else None,
                predicted_p50_us=candidate.profile.p50_ns / 1e3,
                correction=pool.foresight.corrections.factors[number],
                sigma=pool.foresight.corrections.sigmas[number],
                answered=answered.get(candidate.name, 0),
            )
            for number, candidate in enumerate(pool.table.candidates)
        ],
        outcomes=counters.outcomes.get(pool.model, {}),
        calibration=[
            fleet_pb2.CalibrationDecile(
                runs=decile.runs, predicted=decile.predicted, observed=decile.observed
            )
            for decile in pool.foresight.calibration.deciles()
        ],
        door_margin=pool.door.factor,
    )


def _note(pool: Pool, name: str) -> str:
    stronger = pool.table.dominated.get(name)
    return "" if stronger is None else f"dominated by {stronger}"


def _state(registry: Registry, model: str) -> str:
    """The model's readiness, and why a worker that has it takes no part."""
    membership = registry.membership(model)
    state = "without workers" if membership is None else membership.model.state.value
    apart = [
        f"{session.identity.id} kept apart: {session.apart[model]}"
        for session in registry.workers()
        if model in session.apart
    ]
    return "; ".join([state, *apart])
