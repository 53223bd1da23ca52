"""Puts measured evidence into manifests, and remembers which answers were right.

Work is kept after every chunk of items, so an evaluation that was interrupted goes on where
it stopped, and one that is finished only looks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import ConfigDict, TypeAdapter, ValidationError

from worker.models.calibration import Calibration, Escalation
from worker.models.locking import exclusive
from worker.models.manifest import Manifest, QualityEvidence, Variant, load_manifest, save_manifest

FOLDER = ".evidence"


@dataclass(frozen=True, slots=True)
class Tally:
    """How far one variant has come on one population.

    ``key`` says with what, ``source`` names the population's content; ``right`` has a character
    for each item that is done, in order: 1 for a right answer and 0 for a wrong one.
    """

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)

    key: str
    source: str
    right: str = ""

    @property
    def done(self) -> int:
        """How many items are done."""
        return len(self.right)


_TALLY: TypeAdapter[Tally] = TypeAdapter(Tally)


@dataclass(frozen=True, slots=True)
class ConfidenceEvidence:
    """How sure one variant's answers on a population are, and what others gain on them."""

    calibration: Calibration
    escalations: tuple[Escalation, ...] = ()


def record_evidence(folder: Path, variant: str, found: Sequence[QualityEvidence]) -> Manifest:
    """Put evidence of a variant into its manifest and return that.

    Evidence on a population that is there already is replaced in its place, so the first
    population, which routing goes by, stays the first; more items are never replaced by fewer.
    """
    with exclusive(folder):
        manifest = load_manifest(folder)
        changed = []
        for v in manifest.variants:
            known = {item.population: item.n for item in v.quality}
            better = [item for item in found if item.n >= known.get(item.population, 0)]
            own = v.name == variant
            changed.append(replace(v, quality=merged(v.quality, better)) if own else v)
        manifest = replace(manifest, variants=tuple(changed))
        save_manifest(manifest, folder)
    return manifest


def merged(
    old: Sequence[QualityEvidence], new: Sequence[QualityEvidence]
) -> tuple[QualityEvidence, ...]:
    """Return old evidence with new evidence in the place of that on the same population."""
    fresh = {(item.population, item.metric): item for item in new}
    kept = [fresh.pop((item.population, item.metric), item) for item in old]
    return (*kept, *fresh.values())


def with_confidence(manifest: Manifest, found: Mapping[str, ConfidenceEvidence]) -> Manifest:
    """Return the manifest with evidence by variant, all of one population, in the place of the old.

    Evidence that rests on more items stays.
    """
    return replace(
        manifest,
        variants=tuple(
            _confident(variant, found[variant.name]) if variant.name in found else variant
            for variant in manifest.variants
        ),
    )


def tally_of(folder: Path, variant: str, population: str) -> Tally | None:
    """Return the answers of a variant on a population as last evaluated, complete or not."""
    try:
        return _TALLY.validate_json(_tally_file(folder, variant, population).read_bytes())
    except (OSError, ValidationError):
        return None


def save_tally(folder: Path, variant: str, population: str, tally: Tally) -> None:
    """Remember the answers of a variant; an interruption leaves the old memory or the new one."""
    file = _tally_file(folder, variant, population)
    file.parent.mkdir(exist_ok=True)
    partial = file.with_name(file.name + ".partial")
    partial.write_bytes(_TALLY.dump_json(tally))
    partial.replace(file)


def _confident(variant: Variant, found: ConfidenceEvidence) -> Variant:
    new = found.calibration
    old = variant.calibration(new.population)
    if old is not None and min(old.n, old.fitted_on) > min(new.n, new.fitted_on):
        return variant
    others = [item for item in variant.calibrations if item.population != new.population]
    further = [item for item in variant.escalations if item.population != new.population]
    return replace(
        variant,
        calibrations=(*others, new),
        escalations=(*further, *found.escalations),
    )


def _tally_file(folder: Path, variant: str, population: str) -> Path:
    return folder / FOLDER / f"{variant}.{population}.json"
