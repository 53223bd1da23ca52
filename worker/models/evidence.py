"""Measures quality on further populations and puts the evidence into the manifest.

Work is kept after every chunk of texts, so an evaluation that was interrupted goes on where
it stopped, and one that is finished only looks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import ConfigDict, TypeAdapter, ValidationError
from tokenizers import Tokenizer

from worker.hosted import variant_files
from worker.models.errors import CheckpointError
from worker.models.evaluate import Runs, tokenize
from worker.models.locking import exclusive
from worker.models.manifest import Manifest, QualityEvidence, Variant, load_manifest, save_manifest
from worker.models.populations import CLEAR_SUFFIX, Population
from worker.models.progress import Progress
from worker.models.quality import predict
from worker.models.records import digest
from worker.models.statistics import accuracy_evidence

FOLDER = ".evidence"
# Texts between two savings: seconds of work on the largest variant.
CHUNK = 128


@dataclass(frozen=True, slots=True)
class Tally:
    """How far one variant has come on one population.

    ``key`` says with what, ``source`` names the population's content; ``right`` has a character
    for each text that is done, in order: 1 for a right answer and 0 for a wrong one.
    """

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)

    key: str
    source: str
    right: str = ""

    @property
    def done(self) -> int:
        """How many texts are done."""
        return len(self.right)


_TALLY: TypeAdapter[Tally] = TypeAdapter(Tally)


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
        self._engine = engine
        self._open_session = open_session
        self._progress = progress

    def run(self, variants: Sequence[str], populations: Sequence[Population]) -> Manifest:
        """Measure the named variants (none means all) on each population; return the manifest.

        The manifest is written after each variant. Raises CheckpointError when a variant does
        not exist or is no classifier, WorkerError when it does not run.
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
        for variant in manifest.variants:
            if not variants or variant.name in variants:
                found = [e for p in populations for e in self._evaluate(manifest, variant, p)]
                manifest = record_evidence(self._folder, variant.name, found)
        return manifest

    def _evaluate(
        self, manifest: Manifest, variant: Variant, population: Population
    ) -> tuple[QualityEvidence, ...]:
        files = variant_files(self._folder, manifest, variant)
        tokenizer = manifest.tokenizers[variant.tokenizer]
        key = digest(
            files=sorted(ref.sha256 for ref in files.values()),
            tokenizer=tokenizer.sha256,
            data=population.source,
            engine=self._engine,
        )
        file = _tally_file(self._folder, variant.name, population.name)
        tally = tally_of(self._folder, variant.name, population.name)
        if tally is None or tally.key != key:
            tally = Tally(key, population.source)
        total = len(population.texts)
        if tally.done < total:
            session = self._open_session(self._folder / variant.graph)
            words = Tokenizer.from_file(str(self._folder / tokenizer.path))
            ids = tokenize(words, population.texts, variant.max_tokens)
            label = f"{variant.name} on {population.name}"
            with self._progress.step(label, total, "items") as report:
                while tally.done < total:
                    chunk = range(tally.done, min(total, tally.done + CHUNK))
                    some = [ids[index] for index in chunk]
                    guesses = predict(
                        session, variant, some, manifest.primary_output, lambda done: None
                    )
                    tally = _counted(tally, population, chunk, guesses.tolist())
                    _save(file, tally)
                    report(tally.done)
        return _evidence(population, tally)


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


def tally_of(folder: Path, variant: str, population: str) -> Tally | None:
    """Return the answers of a variant on a population as last evaluated, complete or not."""
    try:
        return _TALLY.validate_json(_tally_file(folder, variant, population).read_bytes())
    except (OSError, ValidationError):
        return None


def _counted(tally: Tally, population: Population, chunk: range, guesses: Sequence[int]) -> Tally:
    right = (guess == population.labels[i] for guess, i in zip(guesses, chunk, strict=True))
    return replace(tally, right=tally.right + "".join("1" if one else "0" for one in right))


def _evidence(population: Population, tally: Tally) -> tuple[QualityEvidence, ...]:
    found = (accuracy_evidence(population.name, tally.right.count("1"), tally.done),)
    if not any(population.clear):
        return found
    clear = [one for one, is_clear in zip(tally.right, population.clear, strict=True) if is_clear]
    name = population.name + CLEAR_SUFFIX
    return (*found, accuracy_evidence(name, clear.count("1"), len(clear)))


def _tally_file(folder: Path, variant: str, population: str) -> Path:
    return folder / FOLDER / f"{variant}.{population}.json"


def _save(file: Path, tally: Tally) -> None:
    file.parent.mkdir(exist_ok=True)
    partial = file.with_name(file.name + ".partial")
    partial.write_bytes(_TALLY.dump_json(tally))
    partial.replace(file)
