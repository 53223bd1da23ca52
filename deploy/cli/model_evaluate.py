"""What `orchid models evaluate` measures: classifiers on rated texts, language models on novels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from deploy.cli.model_progress import ModelSteps
from worker.engine import Session
from worker.models.errors import CheckpointError
from worker.models.evaluation import Evaluation
from worker.models.labelled import read_population
from worker.models.manifest import GENERATION, Manifest
from worker.models.measurement import engine_identity
from worker.models.novels import POPULATION, fetch_novels
from worker.models.packages import PackageCache, cache_folder
from worker.models.perplexity import GeneratorEvaluation
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
    evaluation = GeneratorEvaluation(folder, engine_identity(), Session, progress)
    return evaluation.run(wanted.variants, novels, wanted.limit)


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
