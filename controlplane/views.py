"""What several accounts of the house have in common, whoever shows it; for looking only."""

from __future__ import annotations

from typing import NamedTuple

from controlplane.deployed import ModelInfo, ModelState, VariantInfo
from controlplane.dispatcher import Dispatcher
from controlplane.generation.lanes import Lane, Lanes
from controlplane.generation.service import Generations
from controlplane.policy.decode import Route
from controlplane.policy.pool import Pool
from controlplane.registry import Registry, WorkerSession


class ServedLane(NamedTuple):
    """One variant of a model that a decode worker has ready, as the policy sees it."""

    lane: Lane
    variant: VariantInfo
    route: Route


def model_state(registry: Registry, model: str) -> str:
    """The model's readiness, and why a worker that has it takes no part or failed."""
    membership = registry.membership(model)
    state = "without workers" if membership is None else membership.model.state.value
    told = [state]
    for session in registry.workers():
        own = session.models.get(model)
        if model in session.apart:
            told.append(f"{session.identity.id} kept apart: {session.apart[model]}")
        elif own is not None and own.state is ModelState.FAILED:
            told.append(f"{session.identity.id} failed: {own.failure}")
    return "; ".join(told)


def held_by(dispatcher: Dispatcher, generations: Generations, session: WorkerSession) -> int:
    """Requests or generations that a worker has in its hands."""
    lane = generations.lanes.lane(session.number)
    if lane is not None:
        return len(lane.guests)
    return sum(len(flight.requests) for flight in dispatcher.flights(session))


def in_flight(registry: Registry, dispatcher: Dispatcher, pool: Pool) -> int:
    """Requests of a pool that workers hold, each counted as often as it is held."""
    return sum(
        len(flight.requests)
        for session in registry.workers()
        for flight in dispatcher.flights(session)
        if flight.pool is pool
    )


def routing_note(pool: Pool, variant: str) -> str:
    """Why nothing is routed to a variant; empty when something is."""
    stronger = pool.table.dominated.get(variant)
    return "" if stronger is None else f"dominated by {stronger}"


def served_lanes(registry: Registry, lanes: Lanes, model: ModelInfo) -> list[ServedLane]:
    """The variants of a model that generates which decode workers have ready."""
    settings, membership = model.generation, registry.membership(model.name)
    assert settings is not None
    found = []
    for lane in lanes.all():
        session = lane.session
        ready = membership.workers.get(session.number, ()) if membership is not None else ()
        for name in sorted(ready):
            variant = session.models[model.name].variant(name)
            if variant.decode is not None:
                route = lane.route(model.name, settings.context, variant)
                found.append(ServedLane(lane, variant, route))
    return found
