"""Snapshots: the house as it is at one moment, out of the parts that own its state.

Everything here only looks, takes its time as `now_ns`, and returns plain values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from controlplane.bounded_pool import Saturation
from controlplane.deployed import ModelInfo
from controlplane.deployment import deployment_of
from controlplane.dispatcher import Dispatcher
from controlplane.generation.quality import measured_quality
from controlplane.generation.service import Generations
from controlplane.histogram import TIMES_NS
from controlplane.page.history import (
    Counts,
    History,
    ModelCounts,
    first_tokens,
    rates,
    tokens_per_s,
)
from controlplane.page.memory import memory_row
from controlplane.page.reasons import decision_reasons, generation_reasons, request_reasons
from controlplane.page.records import (
    SCHEMA,
    ArenaMap,
    GeneratorRow,
    HeldModel,
    House,
    LaneRow,
    QueueRow,
    Snapshot,
    Totals,
    VariantRow,
    WorkerRow,
)
from controlplane.page.roster import GoneWorker, Roster
from controlplane.page.slow import slow_rows
from controlplane.policy.decode import DecodeLoad
from controlplane.policy.pool import Pool
from controlplane.registry import Registry, WorkerSession, WorkerState
from controlplane.telemetry.timeline import RequestTimeline
from controlplane.views import (
    ServedLane,
    held_by,
    in_flight,
    model_state,
    routing_note,
    served_lanes,
)

# Rates are of the last few seconds: one second of slow traffic is mostly noise.
RATE_S = 10.0
_DIGITS = bytes.maketrans(bytes(range(4)), b"0123")
# An arena of an unknown state has no map, and no byte of one is above 3.
_MOST_CELLS = 4096


class Preprocessing(Protocol):
    """What a snapshot needs of the preprocessor."""

    def saturation(self) -> Saturation: ...


class Slow(Protocol):
    """What is known of slow requests that have ended."""

    def recent(self) -> tuple[RequestTimeline, ...]: ...


@dataclass(frozen=True, slots=True)
class Sources:
    """The parts that a snapshot looks at; all of them belong to one event loop."""

    id: str
    version: str
    started_ns: int
    registry: Registry
    dispatcher: Dispatcher
    generations: Generations
    preprocessing: Preprocessing
    slow: Slow


@dataclass(frozen=True, slots=True)
class Usage:
    """What the control plane's process uses."""

    cpu_percent: float
    resident_bytes: int


def counts_of(sources: Sources) -> Counts:
    """The totals that the history is made of."""
    dispatcher, generations = sources.dispatcher, sources.generations
    outcomes = dispatcher.counters.outcomes
    pools = {pool.model: pool for pool in dispatcher.pools()}
    # Outcomes of models that are not deployed are counted under "".
    models = {name: _pool_counts(dispatcher, name, pools.get(name)) for name in {*pools, *outcomes}}
    offered = sum(sum(of_model.values()) for of_model in outcomes.values())
    offered += dispatcher.gauges()["pending"]
    for model in _generators(sources):
        counts = models[model.name] = _generator_counts(sources, model)
        offered += sum(counts.outcomes.values()) + generations.open_of(model.name)
    runs = sum(sum(each.counts) for each in dispatcher.measures.batch.values())
    return Counts(choices=runs, offered=offered, models=models)


def _pool_counts(dispatcher: Dispatcher, name: str, pool: Pool | None) -> ModelCounts:
    counters = dispatcher.counters
    return ModelCounts(
        outcomes=dict(counters.outcomes.get(name, {})),
        variants={(0, variant): n for variant, n in counters.variants.get(name, {}).items()},
        reasons=request_reasons(dispatcher, name),
        decided=decision_reasons(dispatcher, name),
        queued=pool.queued if pool is not None else 0,
        work_ms=pool.own_work_ns() / 1e6 if pool is not None else 0.0,
    )


def _generator_counts(sources: Sources, model: ModelInfo) -> ModelCounts:
    generations = sources.generations
    lanes = served_lanes(sources.registry, generations.lanes, model)
    keys = [(lane.session.number, variant.name) for lane, variant, _ in lanes]
    return ModelCounts(
        outcomes=dict(generations.outcomes(model.name)),
        variants={
            key: each.lane.answered[model.name, each.variant.name]
            for key, each in zip(keys, lanes, strict=True)
        },
        reasons=generation_reasons(generations, model.name),
        queued=sum(each.route.load.waiting for each in lanes),
        tokens={
            key: each.route.load.generated_tokens for key, each in zip(keys, lanes, strict=True)
        },
        first_tokens=_first_tokens(generations, model.name),
    )


def snapshot(
    sources: Sources,
    history: History,
    roster: Roster,
    usage: Usage,
    *,
    now_ns: int,
    wall_ms: int,
    whole: bool,
) -> Snapshot:
    """The house at `now_ns`, with the whole history or the newest sample only."""
    queues = tuple(_queue(sources, history, pool, now_ns) for pool in sources.dispatcher.pools())
    generators = tuple(_generator(sources, history, model) for model in _generators(sources))
    workers = _workers(sources, roster, now_ns)
    return Snapshot(
        schema=SCHEMA,
        at_ms=wall_ms,
        whole=whole,
        house=_house(sources, usage, now_ns),
        totals=_totals(history, queues, generators, workers),
        workers=workers,
        queues=queues,
        generators=generators,
        slow=slow_rows(sources.slow.recent(), now_ns),
        samples=history.samples() if whole else history.last(),
    )


def _first_tokens(generations: Generations, model: str) -> tuple[int, ...]:
    """Times to the first token of a model so far, by bucket."""
    found = [each for key, each in generations.measures.first_token.items() if key[0] == model]
    return tuple(map(sum, zip(*(each.counts for each in found), strict=True)))


def _generators(sources: Sources) -> list[ModelInfo]:
    return [model for model in sources.registry.models() if model.generates]


def _house(sources: Sources, usage: Usage, now_ns: int) -> House:
    saturation = sources.preprocessing.saturation()
    reported = sum(s.load.expired_items_executed for s in sources.registry.workers())
    counters = sources.dispatcher.counters
    return House(
        id=sources.id,
        version=sources.version,
        policy=sources.dispatcher.policy,
        uptime_s=_short((now_ns - sources.started_ns) / 1e9),
        cpu_percent=_short(usage.cpu_percent),
        resident_bytes=usage.resident_bytes,
        preprocess_queued=saturation.queued,
        preprocess_running=saturation.running,
        # Workers and control plane see the same runs, each by its own clock.
        expired_work_executed=max(counters.expired_work_executed, reported),
    )


def _totals(
    history: History,
    queues: tuple[QueueRow, ...],
    generators: tuple[GeneratorRow, ...],
    workers: tuple[WorkerRow, ...],
) -> Totals:
    samples = history.recent(RATE_S)
    now, minute = rates(samples), rates(history.recent())
    seconds = now.seconds or 1.0
    here = [worker for worker in workers if worker.gone_s is None]
    return Totals(
        seconds=now.seconds,
        choices_per_s=_short(sum(sample.choices for sample in samples) / seconds),
        offered_per_s=_short(sum(sample.offered for sample in samples) / seconds),
        answered_per_s=now.answered_per_s,
        refused_per_s=now.refused_per_s,
        on_time_share=minute.on_time_share,
        queued=sum(queue.queued for queue in queues)
        + sum(lane.waiting for each in generators for lane in each.lanes),
        in_flight=sum(queue.in_flight for queue in queues),
        predicted_work_ms=_short(sum(queue.predicted_work_ms for queue in queues)),
        generations=sum(each.open for each in generators),
        tokens_per_s=_short(sum(each.tokens_per_s for each in generators)),
        workers_ready=sum(worker.state == WorkerState.READY.value for worker in here),
        workers=len(here),
    )


# --- workers ----------------------------------------------------------------------------


def _workers(sources: Sources, roster: Roster, now_ns: int) -> tuple[WorkerRow, ...]:
    here = [
        _worker(session, held_by(sources.dispatcher, sources.generations, session), now_ns)
        for session in sources.registry.workers()
    ]
    return (*here, *(_gone(each, now_ns) for each in roster.gone()))


def _worker(
    session: WorkerSession, held: int, now_ns: int, gone: GoneWorker | None = None
) -> WorkerRow:
    identity, load, memory = session.identity, session.load, session.memory
    state = session.state.value
    if gone is not None:
        state = "drained" if gone.drained else "lost"
    return WorkerRow(
        id=identity.id,
        worker_class="decode" if identity.decodes else "encoder",
        state=state,
        address=identity.address,
        threads=identity.threads,
        cpu_model=identity.cpu_model,
        simd=identity.simd,
        cpu_percent=_short(load.process_cpu_percent),
        host_cpu_percent=_short(load.host_cpu_percent),
        resident_bytes=load.resident_bytes,
        running=load.running_items,
        queued=load.queued_items,
        held=held,
        completed=load.completed_items,
        throttled_periods=load.throttled_periods,
        since_report_ms=_short((now_ns - session.heard_ns) / 1e6),
        models=tuple(_held(session, model) for model in session.models.values()),
        trouble=session.trouble if gone is None else "",
        memory=None if memory is None or gone is not None else memory_row(memory),
        gone_s=_short((now_ns - gone.gone_ns) / 1e9) if gone is not None else None,
    )


def _gone(gone: GoneWorker, now_ns: int) -> WorkerRow:
    return _worker(gone.session, 0, now_ns, gone)


def _held(session: WorkerSession, model: ModelInfo) -> HeldModel:
    return HeldModel(
        name=model.name,
        state=model.state.value,
        progress=model.progress,
        variants=tuple(variant.name for variant in model.variants if variant.serves),
        note=session.apart.get(model.name, "") or model.failure,
    )


# --- queues -----------------------------------------------------------------------------


def _queue(sources: Sources, history: History, pool: Pool, now_ns: int) -> QueueRow:
    counters = sources.dispatcher.counters
    membership = sources.registry.membership(pool.model)
    info = deployment_of(pool.table) if membership is None else membership.model
    answered = counters.variants.get(pool.model, {})
    corrections = pool.foresight.corrections
    head_ns = pool.head_deadline_ns()
    return QueueRow(
        model=pool.model,
        state=model_state(sources.registry, pool.model),
        workers=pool.live,
        queued=pool.queued,
        in_flight=in_flight(sources.registry, sources.dispatcher, pool),
        predicted_work_ms=_short(pool.own_work_ns() / 1e6),
        head_slack_ms=None if head_ns is None else _short((head_ns - now_ns) / 1e6),
        door_margin=_short(pool.door.factor),
        overload=pool.ladder.text,
        variants=tuple(
            VariantRow(
                name=candidate.name,
                quality=candidate.quality if info.has_evidence(candidate.name) else None,
                p50_ms=_short(candidate.profile.p50_ns / 1e6),
                correction=_short(corrections.factors[number]),
                sigma=_short(corrections.sigmas[number]),
                answered=answered.get(candidate.name, 0),
                note=routing_note(pool, candidate.name),
            )
            for number, candidate in enumerate(pool.table.candidates)
        ),
        outcomes=dict(counters.outcomes.get(pool.model, {})),
        reasons=request_reasons(sources.dispatcher, pool.model),
        rates=rates(history.recent(), pool.model),
    )


# --- generators -------------------------------------------------------------------------


def _generator(sources: Sources, history: History, model: ModelInfo) -> GeneratorRow:
    generations = sources.generations
    samples = history.recent(RATE_S)
    lanes = served_lanes(sources.registry, generations.lanes, model)
    rate = tokens_per_s(samples, model.name)
    return GeneratorRow(
        model=model.name,
        state=model_state(sources.registry, model.name),
        open=generations.open_of(model.name),
        overload=generations.overload.ladder(model.name).text,
        redispatched=generations.redispatched(model.name),
        tokens_per_s=_short(rate),
        first_token=first_tokens(history.samples(), model.name, TIMES_NS),
        lanes=tuple(_lane(each) for each in lanes),
        outcomes=dict(generations.outcomes(model.name)),
        reasons=generation_reasons(generations, model.name),
        rates=rates(history.recent(), model.name),
    )


def _lane(served: ServedLane) -> LaneRow:
    lane, variant, route = served
    load = route.load
    return LaneRow(
        worker=lane.session.identity.id,
        variant=variant.name,
        quality=measured_quality(variant),
        open=lane.open(load.model),
        waiting=load.waiting,
        reading=load.prefilling,
        writing=load.decoding,
        pending_prompt_tokens=load.pending_prompt_tokens,
        prefix_hit_tokens=load.prefix_hit_tokens,
        preemptions=load.preemptions,
        shed=load.shed,
        correction=_short(route.correction),
        answered=lane.answered[load.model, variant.name],
        arena=arena_map(load),
    )


def _short(value: float) -> float:
    """As exact as anybody reads it."""
    return round(value, 4)


def arena_map(load: DecodeLoad) -> ArenaMap:
    """An arena as its worker last reported it; a map that is not one is left out."""
    total, free, cached = load.total_blocks, load.free_blocks, load.evictable_blocks
    used = max(0, total - free - cached)
    cells = load.block_map
    if len(cells) > min(total, _MOST_CELLS) or max(cells, default=0) > 3:
        cells = b""
    return ArenaMap(
        total_blocks=total,
        free_blocks=free,
        cached_blocks=cached,
        used_blocks=used,
        occupancy=_short(used / total) if total else 0.0,
        blocks_per_cell=-(-total // len(cells)) if cells else 1,
        cells=cells.translate(_DIGITS).decode("ascii"),
    )
