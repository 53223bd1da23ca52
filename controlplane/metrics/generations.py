"""Readings of the decode lane as the control plane sees it; its workers show steps and arenas."""

from __future__ import annotations

from collections.abc import Iterator

from controlplane.ends import OUTCOMES
from controlplane.generation.lanes import Lanes
from controlplane.generation.measures import BOUND, WORKER
from controlplane.generation.service import Generations
from controlplane.measures import NONE
from controlplane.metrics import families as f
from controlplane.metrics.shared import counts, distributions, overload
from controlplane.policy.admission import Refusal
from controlplane.policy.decode import RouteReason
from controlplane.registry import Registry
from protos.measures import Reading

REASONS = (BOUND, WORKER, RouteReason.NOT_NOW, Refusal.DEFERRED, Refusal.PROTECTING)


def readings(generations: Generations, registry: Registry) -> Iterator[Reading]:
    """Everything that is measured of generations; a copy that later ones do not change."""
    measures = generations.measures
    models = [model.name for model in registry.models() if model.generates]
    classes = [(model, NONE) for model in models]
    yield from counts(f.G_RECEIVED, measures.received, classes)
    ends = [(model, klass, outcome) for model, klass in classes for outcome in OUTCOMES]
    yield from counts(f.G_ENDED, measures.ended, ends)
    yield from counts(f.G_REFUSED, measures.refused, [(m, r) for m in models for r in REASONS])
    yield from counts(f.G_IN_TARGETS, measures.in_targets, classes)
    yield from counts(f.G_TOKENS, measures.tokens)
    yield from distributions(f.G_QUEUE, measures.queue)
    yield from distributions(f.G_FIRST, measures.first_token)
    yield from distributions(f.G_DURATION, measures.duration)
    for model in models:
        yield Reading(f.G_OPEN, (model,), generations.open_of(model))
        yield Reading(f.G_REDISPATCHED, (model,), generations.redispatched(model))
        yield from overload(model, generations.overload.ladder(model))
    for key, factor in _corrections(generations.lanes, registry).items():
        yield Reading(f.G_CORRECTION, key, factor)


def _corrections(lanes: Lanes, registry: Registry) -> dict[tuple[str, str], float]:
    """The largest factor on first-token times by model and variant, over the live workers."""
    found: dict[tuple[str, str], float] = {}
    for lane in lanes.all():
        for load in lane.session.load.decode:
            if registry.membership(load.model) is not None:
                key = (load.model, load.variant)
                found[key] = max(found.get(key, 0.0), lane.correction(*key))
    return found
