"""A model of the repository for the simulator: its profile here, its evidence, recorded answers."""

from __future__ import annotations

from pathlib import Path

from bench.profile import candidates_of
from bench.sim.answers import Answers, read_answers
from bench.sim.model import SimModel
from controlplane.policy.cascade import Calibration, Escalation, Evidence
from worker.models.manifest import Manifest, load_manifest
from worker.models.recorded import recorded_path
from worker.profile_file import own_machine, profile_path, read_profile_file


def read_folder(folder: Path, population: str = "") -> tuple[SimModel, Answers | None]:
    """The model in a folder with this machine's profile, and what its variants answered.

    Without a name the population is the one that the model was measured on first. Answers are
    None where none were recorded. Raises ModelError, ProfileFileError and ValueError.
    """
    manifest = load_manifest(folder)
    file = read_profile_file(profile_path(folder, own_machine(1)))
    evidence = manifest_evidence(manifest)
    first = next((v.quality[0].population for v in manifest.variants if v.quality), "")
    if first in evidence:
        evidence[""] = evidence[first]
    model = SimModel(manifest.name, candidates_of(manifest, file.variants), evidence=evidence)
    path = recorded_path(folder, population or first)
    if population and not path.is_file():
        raise ValueError(f"no answers of {manifest.name} on {population} were recorded")
    return model, read_answers(path) if path.is_file() else None


def manifest_evidence(manifest: Manifest) -> dict[str, Evidence]:
    """What a manifest knows of cascades, by population; refused evidence is left out."""
    calibrations: dict[str, dict[str, Calibration]] = {}
    escalations: dict[str, list[Escalation]] = {}
    for variant in manifest.variants:
        for known in variant.calibrations:
            made = Calibration(known.temperature, known.beta)
            calibrations.setdefault(known.population, {})[variant.name] = made
        for gain in variant.escalations:
            if not gain.refused:
                escalations.setdefault(gain.population, []).append(
                    Escalation(
                        first=variant.name,
                        to=gain.to,
                        confidences=gain.confidences,
                        gains=gain.gains,
                        counts=gain.counts,
                        shares_right=gain.shares_right,
                    )
                )
    return {
        population: Evidence(population, calibrations.get(population, {}), tuple(rows))
        for population, rows in escalations.items()
    }
