"""When a cluster is ready, and how far it is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from deploy.access import Access
from deploy.fleet import FleetError, fetch_progress
from deploy.fleet_views import FleetStatus


@dataclass(frozen=True, slots=True)
class Readiness:
    """How far the start is: workers that take work, and loading progress from 0 to 1.

    `failed` names the models that a worker cannot load, and why.
    """

    ready: int
    wanted: int
    progress: float
    failed: Mapping[str, str] = field(default_factory=dict)


def is_ready(
    status: FleetStatus,
    wanted: int,
    models: frozenset[str],
    *,
    decoders: int = 0,
    generators: frozenset[str] = frozenset(),
) -> bool:
    """Whether so many workers take work and each serves every one of the models.

    `decoders` counts the decode workers beside them, which serve the `generators`.
    """
    served = {p.model for p in status.pools if p.state == "ready" and p.workers >= wanted}
    speaking = {
        g.model for g in status.generators if g.state == "ready" and len(g.lanes) >= decoders
    }
    taking = status.ready_workers() >= wanted + decoders
    return taking and served >= models and speaking >= generators


def loading(
    addresses: Iterable[str | None], models: frozenset[str], access: Access | None = None
) -> tuple[float, dict[str, str]]:
    """The sum of all workers' progress with all models, and which of `models` failed and why.

    Workers that have no address yet, or do not answer, have made no progress.
    """
    total = 0.0
    failed: dict[str, str] = {}
    for address in addresses:
        if address is None:
            continue
        with suppress(FleetError):
            for model in fetch_progress(address, timeout_s=1.0, access=access):
                if model.state == "failed" and model.model in models:
                    failed[model.model] = model.failure
                total += model.progress
    return total, failed


def failures(failed: Mapping[str, str]) -> str:
    """One line for each model that cannot be loaded."""
    return "\n".join(f"model {name} cannot be loaded: {why}" for name, why in failed.items())


def describe(status: FleetStatus | None, wanted: int) -> str:
    """What is there, for the error when a wait ends without readiness."""
    if status is None:
        return "the control plane does not answer"
    pools = ", ".join(
        [
            *(f"{pool.model} {pool.state} on {pool.workers}" for pool in status.pools),
            *(f"{each.model} {each.state} on {len(each.lanes)}" for each in status.generators),
        ]
    )
    return f"{status.ready_workers()} of {wanted} workers ready; models: {pools or 'none'}"
