"""Readings of the encoder lane: queues, endings, predictions and what they were worth."""

from __future__ import annotations

from collections.abc import Iterator

from controlplane.dispatcher import Dispatcher
from controlplane.ends import OUTCOMES
from controlplane.measures import NONE, OTHER, QUEUED, RUNNING, Callers
from controlplane.metrics import families as f
from controlplane.metrics.shared import counts, distributions, overload
from controlplane.policy.admission import Refusal
from controlplane.policy.calibration import DECILES
from controlplane.policy.drift import ClassWatch
from controlplane.policy.pool import Pool
from controlplane.policy.price import Price
from controlplane.policy.records import RequestClass
from controlplane.policy.selector import Reason
from controlplane.registry import WorkerSession
from protos.measures import Reading

# Why a request may be refused: shown from the start, so that the first one is an increase.
REASONS = (
    Refusal.QUEUE_FULL,
    Refusal.WORK_BOUND,
    Refusal.BEHIND_WORK,
    Refusal.TOO_SHORT,
    Refusal.EXPIRED,
    Refusal.NO_WORKER,
    Refusal.DEFERRED,
    Refusal.PROTECTING,
    Refusal.TENANT_QUEUE,
    Refusal.TENANT_WORK,
    Refusal.TENANT_RATE,
    Reason.SHED_UNLIKELY,
)


def readings(dispatcher: Dispatcher, sessions: tuple[WorkerSession, ...]) -> Iterator[Reading]:
    """Everything that is measured of requests; a copy that later requests do not change."""
    measures, counters = dispatcher.measures, dispatcher.counters
    models = [pool.model for pool in dispatcher.pools()]
    classes = [(model, NONE) for model in models]
    yield from counts(f.RECEIVED, measures.received, classes)
    ends = [(*key, outcome) for key in classes for outcome in OUTCOMES]
    yield from counts(f.ENDED, measures.ended, ends)
    yield from counts(f.REFUSED, measures.refused, [(m, r) for m in models for r in REASONS])
    places = [(model, place) for model in models for place in (QUEUED, RUNNING)]
    yield from counts(f.MISSED, measures.missed, places)
    yield from counts(f.ANSWERS, measures.answers)
    for pool in dispatcher.pools():
        yield from _cascades(pool, measures.callers)
    yield from counts(f.INPUT_TOKENS, measures.tokens)
    yield from distributions(f.QUEUE_TIME, measures.queue)
    yield from distributions(f.DURATION, measures.duration)
    yield from distributions(f.SLACK, measures.slack)
    yield from distributions(f.BATCH, measures.batch)
    yield from distributions(f.SERVICE_RATIO, measures.service)
    yield Reading(f.DISPATCHED, (), counters.dispatched)
    yield Reading(f.REDISPATCHED, (), counters.redispatched)
    yield Reading(f.LATE_RESULTS, (), counters.late_results)
    yield Reading(f.UNKNOWN_RESULTS, (), counters.unknown_results)
    yield Reading(f.EXPIRED, (), counters.expired_work_executed)
    held, now_ns = dict.fromkeys(models, 0), dispatcher.now_ns()
    for session in sessions:
        for flight in dispatcher.flights(session):
            held[flight.pool.model] += len(flight.requests)
    for pool in dispatcher.pools():
        yield from _pool(pool, held[pool.model], now_ns)


def _cascades(pool: Pool, callers: Callers) -> Iterator[Reading]:
    """What second answers said of first ones; classes that are not told apart are left out."""
    watches = {"": ClassWatch()}
    if pool.cascading is not None:
        watches.update(pool.cascading.drift)
    possible = pool.cascading is not None and pool.table.cascades is not None
    for name, watch in watches.items():
        label = (pool.model, callers.klass(RequestClass(name=name)))
        if label[1] == OTHER:
            continue
        yield Reading(f.CASCADE_ON, label, int(possible and watch.on))
        yield Reading(f.CASCADE_AGREEMENT, label, watch.agreement)
        yield Reading(f.CASCADE_FLOOR, label, watch.floor)
        yield Reading(f.CASCADE_FIRST, label, watch.answers)
        yield Reading(f.CASCADE_COMPARED, (*label, "escalated"), watch.compared - watch.shadows)
        yield Reading(f.CASCADE_COMPARED, (*label, "shadow"), watch.shadows)


def _pool(pool: Pool, in_flight: int, now_ns: int) -> Iterator[Reading]:
    model = (pool.model,)
    yield Reading(f.QUEUED, model, pool.queued)
    yield Reading(f.QUEUED_WORK, model, pool.own_work_ns())
    yield Reading(f.IN_FLIGHT, model, in_flight)
    yield Reading(f.DOOR_MARGIN, model, pool.door.factor)
    yield from overload(pool.model, pool.ladder)
    # The other policies put no price on a worker's time.
    price = pool.policy.price_per_s() if isinstance(pool.policy, Price) else 0.0
    yield Reading(f.PRICE, model, price)
    raised = [] if pool.cohorts is None else pool.cohorts.prices(now_ns)
    yield Reading(f.COHORTS_RAISED, model, len(raised))
    yield Reading(f.COHORT_PRICE, model, raised[0].price if raised else 1.0)
    corrections = pool.foresight.corrections
    for number, candidate in enumerate(pool.table.candidates):
        variant = (pool.model, candidate.name)
        yield Reading(f.CORRECTION, variant, corrections.factors[number])
        yield Reading(f.SPREAD, variant, corrections.sigmas[number])
    for place, decile in enumerate(pool.foresight.calibration.sums()):
        chance = (pool.model, f"{place / DECILES:.1f}")
        yield Reading(f.CHANCE_RUNS, chance, decile.runs)
        yield Reading(f.CHANCE_PREDICTED, chance, decile.chances)
        yield Reading(f.CHANCE_OBSERVED, chance, decile.on_time)
