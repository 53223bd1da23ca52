"""Measures a classifier's accuracy and confidence on populations, into its manifest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from worker.errors import ModelLoadError
from worker.hosted import variant_files
from worker.models.errors import CheckpointError
from worker.models.escalations import Sample, confidence_evidence, too_few
from worker.models.evaluate import Runs
from worker.models.evidence import record_evidence, with_confidence
from worker.models.locking import exclusive
from worker.models.manifest import (
    Manifest,
    QualityEvidence,
    Variant,
    load_manifest,
    save_manifest,
)
from worker.models.measurement import Measured, Measurement, accuracies
from worker.models.populations import FITTING_SUFFIX, Population
from worker.models.progress import Progress
from worker.models.recorded import Recorded, read_recorded, recorded_path, write_recorded


class Evaluation:
    """Evaluates variants of one model; ``engine`` identifies what runs them.

    ``open_session`` loads a graph as serving does.
    """

    def __init__(
        self,
        folder: Path,
        engine: str,
        open_session: Callable[[Path], Runs],
        progress: Progress,
    ) -> None:
        self._folder = folder
        self._progress = progress
        self._measurement = Measurement(folder, engine, open_session, progress)

    def run(self, variants: Sequence[str], populations: Sequence[Population]) -> Manifest:
        """Measure the named variants (none means all) on each population; return the manifest.

        The manifest is written after each variant, and with the confidence evidence of all
        variants whose answers are known at the end. Raises CheckpointError when a variant does
        not exist, is no classifier or does not take an item, WorkerError when it does not run.
        """
        manifest = load_manifest(self._folder)
        if manifest.task != "text-classification":
            raise CheckpointError(
                f"a classifier in {self._folder.name}", manifest.task, "evaluate a classifier"
            )
        names = [variant.name for variant in manifest.variants]
        for name in variants:
            if name not in names:
                raise CheckpointError(f"a variant of {', '.join(names)}", repr(name), "name these")
        for population in populations:
            _check_tokenizers(manifest, population)
        for variant in manifest.variants:
            if not variants or variant.name in variants:
                found = [e for p in populations for e in self._measure(manifest, variant, p)]
                manifest = record_evidence(self._folder, variant.name, found)
        for population in populations:
            with exclusive(self._folder):
                before = load_manifest(self._folder)
                manifest = confident(
                    before, self._folder, self._measurement, population, self._progress
                )
                if manifest != before:
                    save_manifest(manifest, self._folder)
        return manifest

    def _measure(
        self, manifest: Manifest, variant: Variant, population: Population
    ) -> tuple[QualityEvidence, ...]:
        measured = measured_variant(self._folder, manifest, variant)
        answers = self._measurement.answers(measured, population)
        if population.fitting is not None:
            self._measurement.answers(measured, population.fitting)
        return accuracies(population, answers)


@dataclass(frozen=True, slots=True)
class _Side:
    """Items that are fitted or tested on, with their lengths in tokens, int32 [N]."""

    name: str
    sample: Sample
    tokens: NDArray[np.int32]

    def part(self, mask: NDArray[np.bool_], name: str) -> _Side:
        logits = {variant: rows[mask] for variant, rows in self.sample.logits.items()}
        return _Side(name, Sample(self.sample.labels[mask], logits), self.tokens[mask])


def confident(
    manifest: Manifest,
    folder: Path,
    measurement: Measurement,
    population: Population,
    progress: Progress,
) -> Manifest:
    """Return the manifest with the confidence evidence of all variants whose answers are kept.

    Records those answers for simulations too. Too few items are noted and change nothing. Raises
    CheckpointError when answers cannot be fitted.
    """
    variants = _measured_variants(manifest, folder)
    if not variants:
        return manifest
    whole = _side(variants, measurement, population)
    if population.fitting is not None:
        fitting, testing = _side(variants, measurement, population.fitting), whole
    else:
        half = population.fitted_half()
        fitting = whole.part(half, population.name + FITTING_SUFFIX)
        testing = whole.part(~half, population.name)
    if reason := too_few(len(fitting.sample), len(testing.sample)):
        progress.note(f"no confidence evidence on {population.name}: {reason}")
        return manifest
    try:
        found = confidence_evidence(population.name, fitting.sample, testing.sample)
    except ValueError as error:
        raise CheckpointError(
            f"answers on {population.name} that tell a confidence", str(error), "check the graphs"
        ) from None
    for side in (fitting, testing):
        _record(folder, side)
    return with_confidence(manifest, found)


def measured_variant(folder: Path, manifest: Manifest, variant: Variant) -> Measured:
    """Return a variant of a manifest as it is run; raises ModelLoadError for missing files."""
    return Measured(
        variant,
        variant_files(folder, manifest, variant),
        manifest.tokenizers[variant.tokenizer],
        manifest.primary_output,
    )


def _measured_variants(manifest: Manifest, folder: Path) -> list[Measured]:
    """Variants whose files are there, those with the default tokenizer first."""
    found = []
    for variant in manifest.variants:
        try:
            found.append(measured_variant(folder, manifest, variant))
        except ModelLoadError:
            # What cannot be run has no say; `orchid models verify` tells of it.
            continue
    return sorted(found, key=lambda m: m.variant.tokenizer != manifest.default_tokenizer)


def _side(variants: Sequence[Measured], measurement: Measurement, population: Population) -> _Side:
    """All kept answers to a population, and its lengths by the first variant's tokenizer."""
    found = {m.variant.name: measurement.kept(m, population) for m in variants}
    logits = {name: answers.logits for name, answers in found.items() if answers is not None}
    lengths = [len(ids) for ids in measurement.sequences(variants[0], population)]
    sample = Sample(np.asarray(population.labels, np.int64), logits)
    return _Side(population.name, sample, np.array(lengths, np.int32))


def _record(folder: Path, side: _Side) -> None:
    """Write a side's answers, unless there are those to more items."""
    path = recorded_path(folder, side.name)
    try:
        if len(read_recorded(path).labels) > len(side.tokens):
            return
    except CheckpointError:
        pass
    labels = side.sample.labels.astype(np.int32)
    write_recorded(path, Recorded(side.tokens, labels, side.sample.logits))


def _check_tokenizers(manifest: Manifest, population: Population) -> None:
    own = {variant.tokenizer for variant in manifest.variants}
    if population.token_ids and len(own) > 1:
        raise CheckpointError(
            f"texts in {population.name} for variants of several tokenizers",
            "token_ids",
            "give texts",
        )
