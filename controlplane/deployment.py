"""What is deployed and configured, in the terms of the policy."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace

from controlplane.config import ClassConfig, ControlPlaneConfig
from controlplane.errors import ControlPlaneError, InvalidRequest
from controlplane.evidence import evidence_faults, evidence_of
from controlplane.policy.admission import Bounds
from controlplane.policy.entries import Settings
from controlplane.policy.policies import Policy, build
from controlplane.policy.profiles import Candidate, VariantTable
from controlplane.policy.records import Request, RequestClass
from controlplane.policy.scheduler import Scheduler
from controlplane.policy.tenancy.tenancy import Tenancy
from controlplane.registry import ModelInfo
from controlplane.tenants import TenantsConfig

_log = logging.getLogger(__name__)

_MS = 1_000_000


def policy_settings(config: ControlPlaneConfig) -> Settings:
    """What the scheduler is tuned by."""
    return Settings(
        bounds=Bounds(config.queue.max_items, config.queue.max_predicted_work_ms * _MS),
        confidence_z=config.confidence_z,
        response_ns=int(config.response_reserve_ms * _MS),
        reserve=config.reserve_fraction,
        prefetch=config.prefetch,
        max_batch=config.max_batch,
    )


def policy_of(config: ControlPlaneConfig) -> Policy:
    """The policy that decides."""
    return build(config.policy, confidence_z=config.confidence_z, reserve=config.reserve_fraction)


def renewed(tenancy: Tenancy | None, config: TenantsConfig) -> Tenancy | None:
    """Tenants on these terms, with what they have had; None without terms."""
    if not config:
        return None
    return Tenancy(config) if tenancy is None else tenancy.carried(config)


def variant_table(info: ModelInfo, quality_resolution: float) -> VariantTable:
    """The variants of a model that some worker has ready and profiled.

    See `ControlPlaneConfig.quality_resolution`.
    """
    return VariantTable.build(
        [
            Candidate(
                name=variant.name,
                tokenizer=variant.tokenizer,
                quality=variant.quality_value,
                profile=variant.profile,
                max_tokens=variant.max_tokens,
                batchable=variant.layout == "ragged",
            )
            for variant in info.variants
            if variant.ready and variant.profile is not None
        ],
        deployment=info,
        resolution=quality_resolution,
        evidence=evidence_of(info),
    )


def deployment_of(table: VariantTable) -> ModelInfo:
    """The model that `variant_table` made a table of."""
    assert isinstance(table.deployment, ModelInfo)
    return table.deployment


def same_deployment(one: VariantTable, other: VariantTable) -> bool:
    """Whether two tables describe the same variants of the same manifest."""
    before, after = deployment_of(one), deployment_of(other)
    return one == other and before.manifest_digest == after.manifest_digest


def new_table(
    info: ModelInfo, quality_resolution: float, before: VariantTable | None
) -> VariantTable | None:
    """The table of a model as it is now; None when it has no variant, or is as `before`."""
    table = variant_table(info, quality_resolution)
    if not len(table) or (before is not None and same_deployment(before, table)):
        return None
    return table


def deploy(
    scheduler: Scheduler, info: ModelInfo, quality_resolution: float
) -> list[tuple[Request, ControlPlaneError]]:
    """Serve a model as it is now; returns the queued requests that it cannot answer any more."""
    pool = scheduler.pools.get(info.name)
    table = new_table(info, quality_resolution, None if pool is None else pool.table)
    return [] if table is None else scheduler.set_pool(info.name, table)


def effective_class(klass: RequestClass, configured: Mapping[str, ClassConfig]) -> RequestClass:
    """The class with what the configuration demands of everyone who names it.

    The same value where that is no more than it asks itself: callers share one (`request_class`),
    and a copy costs more than to compare. InvalidRequest when the name is not configured: a floor
    that silently does not hold would be worse.
    """
    if not klass.name:
        return klass
    named = configured.get(klass.name)
    if named is None:
        known = ", ".join(sorted(configured)) or "none"
        raise InvalidRequest(f"unknown request class {klass.name!r}; configured: {known}")
    if (
        klass.minimum_quality >= named.minimum_quality
        and klass.prohibited.issuperset(named.prohibited)
        and klass.deferrable == named.deferrable
        and (named.approximation or not klass.approximation)
        and klass.population == named.population
    ):
        return klass
    return replace(
        klass,
        minimum_quality=max(klass.minimum_quality, named.minimum_quality),
        prohibited=klass.prohibited | frozenset(named.prohibited),
        deferrable=named.deferrable,
        approximation=klass.approximation and named.approximation,
        population=named.population,
    )


def unknown_prohibitions(
    classes: Mapping[str, ClassConfig], models: Iterable[ModelInfo]
) -> tuple[str, ...]:
    """A line for each variant that a class prohibits and no model has, with the nearest name.

    A prohibition that is misspelt would let the variant answer all the same.
    """
    known = sorted({variant.name for model in models for variant in model.variants})
    lines = []
    for name, settings in classes.items():
        for variant in settings.prohibited:
            if variant not in known:
                near = difflib.get_close_matches(variant, known, n=1, cutoff=0.5)
                hint = f"did you mean {near[0]!r}?" if near else f"variants: {', '.join(known)}"
                lines.append(f"class {name!r} prohibits {variant!r}, which no model has; {hint}")
    return tuple(lines)


class Disagreements:
    """Logs what the configuration and the deployed models disagree about, each once."""

    def __init__(self, classes: Mapping[str, ClassConfig]) -> None:
        self._classes = classes
        self._told: frozenset[str] = frozenset()

    def tell(self, models: Iterable[ModelInfo]) -> None:
        """Look at the deployed models, of which those that are ready count."""
        ready = [model for model in models if model.ready]
        if not ready:
            return
        lines = unknown_prohibitions(self._classes, ready)
        lines += evidence_faults(self._classes, ready)
        for line in lines:
            if line not in self._told:
                _log.warning("%s", line)
        self._told = frozenset(lines)
