"""What `orchid models evaluate` measures: classifiers on rated texts, language models on novels."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from deploy.cli.model_progress import ModelSteps
from worker.engine import Session
from worker.models.errors import CheckpointError, PackageError
from worker.models.evaluation import Evaluation
from worker.models.labelled import read_population
from worker.models.manifest import GENERATION, Manifest
from worker.models.measurement import engine_identity
from worker.models.novels import POPULATION, fetch_novels
from worker.models.packages import PackageCache, cache_folder
from worker.models.perplexity import BUILT_WINDOWS, GeneratorEvaluation
from worker.models.populations import (
    RATED_LABELS,
    RATED_SETS,
    rated_population,
)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to evaluate: names of populations and variants (none: all), at most `limit` items.

    `labelled` are files of labelled items; see `read_population`.
    """

    populations: Sequence[str]
    variants: Sequence[str]
    labelled: Sequence[Path] = ()
    limit: int = 0


def evaluate_model(
    folder: Path, manifest: Manifest, wanted: Wanted, progress: ModelSteps
) -> Manifest:
    """Measure and record; return the manifest. Raises ModelError or WorkerError."""
    measure = _language_model if manifest.task == GENERATION else _classifier
    return measure(folder, manifest, wanted, progress)


def evaluate_built(folder: Path, manifest: Manifest, progress: ModelSteps) -> Manifest:
    """Measure a language model that was built just now, on a window of each novel.

    Returns the manifest; as it is when each variant has been measured already, or when the text
    cannot be had, which is noted. Raises CheckpointError or WorkerError.
    """
    if all(variant.evidence(POPULATION) for variant in manifest.variants):
        return manifest
    try:
        novels = fetch_novels(cache_folder(), progress)
    except PackageError as error:
        progress.note(f"no text to measure quality on: expected {error.expected}; got {error.got}")
        return manifest
    return _generator_evaluation(folder, progress).run((), novels, BUILT_WINDOWS)


def _language_model(
    folder: Path, manifest: Manifest, wanted: Wanted, progress: ModelSteps
) -> Manifest:
    others = [name for name in wanted.populations if name != POPULATION]
    if others or wanted.labelled:
        raise CheckpointError(
            f"population {POPULATION} for a language model",
            ", ".join(others) or "--labelled",
            "leave the populations out",
        )
    novels = fetch_novels(cache_folder(), progress)
    return _generator_evaluation(folder, progress).run(wanted.variants, novels, wanted.limit)


def _generator_evaluation(folder: Path, progress: ModelSteps) -> GeneratorEvaluation:
    cores = len(os.sched_getaffinity(0))
    return GeneratorEvaluation(
        folder, engine_identity(), lambda graph: Session(graph, intra_op_threads=cores), progress
    )


def _classifier(folder: Path, manifest: Manifest, wanted: Wanted, progress: ModelSteps) -> Manifest:
    names = wanted.populations or (
        [] if wanted.labelled else [rated.population for rated in RATED_SETS]
    )
    if names and manifest.labels != RATED_LABELS:
        raise CheckpointError(
            f"labels {', '.join(RATED_LABELS)} for rated sets",
            ", ".join(manifest.labels) or "none",
            "give --labelled FILE",
        )
    files = PackageCache(cache_folder(), progress)
    populations = [rated_population(item, files) for item in names]
    populations += [read_population(path, manifest.labels) for path in wanted.labelled]
    evaluation = Evaluation(folder, engine_identity(), Session, progress)
    return evaluation.run(wanted.variants, [item.first(wanted.limit) for item in populations])
