"""`orchid profile --calibrate`: how sure a classifier's variants are, from labelled items."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from deploy.cli.confidence_tables import confidence_tables
from deploy.cli.model_evaluate import Wanted, evaluate_model
from deploy.cli.model_progress import model_progress
from deploy.cli.model_tables import evidence_table
from worker.models.errors import CheckpointError
from worker.models.escalations import too_few
from worker.models.labelled import read_population
from worker.models.repository import find_model


def calibrate_model(
    repository: Path, model: str, variants: Sequence[str], files: Sequence[Path]
) -> None:
    """Measure the variants on every file, write the evidence into the manifest and show it.

    Raises ModelError for models that are no text classifiers and for files that cannot be read or
    have too few items, before anything is run; WorkerError when a variant does not run.
    """
    manifest = find_model(repository, model)
    if manifest.task != "text-classification":
        raise CheckpointError(
            f"a text classifier in {model}",
            f"task {manifest.task}",
            "a graph with input_ids and attention_mask is one when it is imported with its "
            "tokenizer and --label for each class",
        )
    for file in files:
        population = read_population(file, manifest.labels)
        half = population.fitted_half()
        if reason := too_few(int(half.sum()), int((~half).sum())):
            raise CheckpointError(
                f"labelled items in {file.name} that tell how sure a variant may be",
                reason,
                "add items, some 1,100 in all",
            )
    console = Console(highlight=False)
    with model_progress(Console(stderr=True, highlight=False)) as progress:
        wanted = Wanted((), variants, files)
        manifest = evaluate_model(repository / model, manifest, wanted, progress)
    for part in (evidence_table(manifest), *confidence_tables(manifest)):
        console.print(part)
