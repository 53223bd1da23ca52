"""What workers know of their variants' answers, as the evidence that cascades rest on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from controlplane.config import ClassConfig
from controlplane.deployed import ModelInfo
from controlplane.policy.cascade import Calibration, Escalation, Evidence, faults


def main_population(info: ModelInfo) -> str:
    """What a model was measured on first: its requests are like that unless a class says more."""
    for variant in info.variants:
        if variant.quality:
            return variant.quality[0].population
    return ""


def evidence_of(info: ModelInfo) -> dict[str, Evidence]:
    """The usable evidence of a model by population; "" is that of its main population."""
    found = {each.population: each for each in _told(info) if not faults(each)}
    main = found.get(main_population(info))
    return found if main is None else {**found, "": main}


def evidence_faults(
    classes: Mapping[str, ClassConfig], models: Iterable[ModelInfo]
) -> tuple[str, ...]:
    """A line for each evidence that cannot be used, and for each population nobody measured."""
    models = tuple(models)
    lines = []
    known: set[str] = set()
    for info in models:
        for each in _told(info):
            known.add(each.population)
            what = f"evidence of model {info.name!r} on {each.population!r} is not used"
            lines += [f"{what}: {fault}" for fault in faults(each)]
    for name, settings in classes.items():
        if settings.population and settings.population not in known:
            has = ", ".join(sorted(known)) or "none"
            lines.append(
                f"class {name!r} is of population {settings.population!r}, on which no model has "
                f"evidence for cascades; populations: {has}"
            )
    return tuple(lines)


def _told(info: ModelInfo) -> list[Evidence]:
    calibrations: dict[str, dict[str, Calibration]] = {}
    escalations: dict[str, list[Escalation]] = {}
    for variant in info.variants:
        for population, calibration in variant.calibrations:
            calibrations.setdefault(population, {})[variant.name] = calibration
        for population, escalation in variant.escalations:
            escalations.setdefault(population, []).append(escalation)
    return [
        Evidence(population, calibrations.get(population, {}), tuple(rows))
        for population, rows in escalations.items()
    ]
