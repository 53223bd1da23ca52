"""What GetStatus answers: the state of the house as one message."""

from __future__ import annotations

from dataclasses import dataclass

import psutil

from controlplane.deployed import ModelInfo
from controlplane.deployment import deployment_of
from controlplane.dispatcher import Dispatcher
from controlplane.generation.quality import measured_quality
from controlplane.generation.service import Generations
from controlplane.policy.cohorts import CohortPrice
from controlplane.policy.pool import Pool
from controlplane.preprocess import Preprocessor
from controlplane.registry import Registry, WorkerSession
from controlplane.reload import Reloads
from controlplane.rpc.memory import write_memory
from controlplane.rpc.tenant_status import overload_status, reload_status, tenant_statuses
from controlplane.rpc.wire import (
    write_decode_load,
    write_decode_profile,
    write_hello,
    write_load,
)
from controlplane.views import (
    ServedLane,
    held_by,
    in_flight,
    model_state,
    routing_note,
    served_lanes,
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
    reloads: Reloads | None = None


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
        pools=[_pool(registry, dispatcher, pool, now_ns) for pool in dispatcher.pools()],
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
            _generator(registry, generations, model, now_ns)
            for model in registry.models()
            if model.generates
        ],
        tenants=tenant_statuses(dispatcher.tenancy),
        reloads=reload_status(source.reloads) if source.reloads is not None else None,
    )


def _worker(
    dispatcher: Dispatcher, generations: Generations, session: WorkerSession, now_ns: int
) -> fleet_pb2.WorkerStatus:
    tally = session.tally
    return fleet_pb2.WorkerStatus(
        hello=write_hello(session.identity),
        load=write_load(session.load),
        state=session.state.value,
        in_flight_items=held_by(dispatcher, generations, session),
        since_report_ms=(now_ns - session.heard_ns) / 1e6,
        run_cpu_us=tally.run_cpu_ns // 1000,
        process_cpu_us=tally.process_cpu_ns // 1000,
        live_token_ms=tally.live_token_ms,
        charged_cpu_us=tally.charged_cpu_ns // 1000,
        charged_live_token_ms=tally.charged_token_ms,
        memory=write_memory(session.memory),
        trouble=session.trouble,
    )


def _generator(
    registry: Registry, generations: Generations, model: ModelInfo, now_ns: int
) -> fleet_pb2.GeneratorStatus:
    return fleet_pb2.GeneratorStatus(
        model=model.name,
        manifest_digest=model.manifest_digest,
        state=model_state(registry, model.name),
        open=generations.open_of(model.name),
        lanes=[_lane(each) for each in served_lanes(registry, generations.lanes, model)],
        outcomes=generations.outcomes(model.name),
        redispatched=generations.redispatched(model.name),
        overload=overload_status(generations.overload.ladder(model.name)),
        cohorts=[_cohort(c) for c in generations.prices.prices(model.name, now_ns)],
    )


def _lane(served: ServedLane) -> fleet_pb2.LaneStatus:
    lane, variant, route = served
    profile = variant.decode
    assert profile is not None
    model = route.load.model
    return fleet_pb2.LaneStatus(
        worker_id=lane.session.identity.id,
        variant=variant.name,
        quality=measured_quality(variant),
        open=lane.open(model),
        most_tokens=route.most_tokens,
        correction=route.correction,
        answered=lane.answered[model, variant.name],
        profile=write_decode_profile(profile),
        load=write_decode_load(route.load),
    )


def _pool(
    registry: Registry, dispatcher: Dispatcher, pool: Pool, now_ns: int
) -> fleet_pb2.PoolStatus:
    counters = dispatcher.counters
    membership = registry.membership(pool.model)
    info = deployment_of(pool.table) if membership is None else membership.model
    answered = counters.variants.get(pool.model, {})
    return fleet_pb2.PoolStatus(
        model=pool.model,
        manifest_digest=info.manifest_digest,
        state=model_state(registry, pool.model),
        workers=pool.live,
        queued=pool.queued,
        in_flight=in_flight(registry, dispatcher, pool),
        predicted_work_ms=pool.own_work_ns() / 1e6,
        variants=[
            fleet_pb2.VariantStatus(
                name=candidate.name,
                routable=candidate.name not in pool.table.dominated,
                note=routing_note(pool, candidate.name),
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
        overload=overload_status(pool.ladder),
        cohorts=[] if pool.cohorts is None else [_cohort(c) for c in pool.cohorts.prices(now_ns)],
        cascades=_cascades(pool),
    )


def _cohort(priced: CohortPrice) -> fleet_pb2.CohortStatus:
    return fleet_pb2.CohortStatus(
        tenant=priced.tenant,
        request_class=priced.klass,
        tokens=priced.tokens,
        price=priced.price,
        runs=priced.runs,
    )


def _cascades(pool: Pool) -> list[fleet_pb2.CascadeStatus]:
    if pool.cascading is None:
        return []
    return [
        fleet_pb2.CascadeStatus(
            request_class=name,
            on=watch.on,
            agreement=watch.agreement,
            floor=watch.floor,
            answers=watch.answers,
            compared=watch.compared,
            shadows=watch.shadows,
        )
        for name, watch in pool.cascading.drift
    ]
