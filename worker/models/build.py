"""Builds the default model: packages and adapters in, measured variants and a manifest out."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import onnx

from worker.engine import Session, runtime_info
from worker.models import sentiment
from worker.models.architecture import Encoder
from worker.models.build_evidence import OUTPUT, BuildEvidence, settled
from worker.models.checkpoint import MergedWeights, SafetensorsFiles, plain_tokenizer, read_json
from worker.models.dataset import POPULATION, read_reviews
from worker.models.entry import write_shared, write_variant
from worker.models.errors import ManifestError
from worker.models.evaluation import confident
from worker.models.evidence import merged
from worker.models.families import classifier_head, encoder_config, read_encoder
from worker.models.graph import OPSET
from worker.models.jobs import Job, jobs_of
from worker.models.locking import exclusive
from worker.models.manifest import (
    SCHEMA,
    FileRef,
    Manifest,
    Variant,
    describe_file,
    file_fault,
    load_manifest,
    save_manifest,
)
from worker.models.measurement import Measurement, engine_identity
from worker.models.packages import (
    REVIEWS_FILE,
    CheckpointFiles,
    CheckpointPackages,
)
from worker.models.populations import Population, held_out_population
from worker.models.progress import Progress, Stoppable
from worker.models.records import (
    SharedRecord,
    VariantRecord,
    code_digest,
    complete,
    digest,
    load_record,
    load_shared,
    save_record,
    save_shared,
)
from worker.models.sentiment import RECIPES, Recipe

# Why a variant that was in the manifest is not in it any more.
_GONE = (
    "an earlier build made it, and its files are not those any more: `orchid models build` without "
    "--small makes it anew"
)


@dataclass(frozen=True, slots=True)
class BuildReport:
    """What a build did: the model's folder and manifest, and what was made, measured or refused.

    ``kept`` are variants that it did not look after, as other code made them.
    """

    folder: Path
    manifest: Manifest
    made: tuple[str, ...]
    measured: tuple[str, ...]
    refused: tuple[tuple[str, str], ...]
    kept: tuple[str, ...] = ()


class Sources(Protocol):
    """Where base checkpoints and labelled reviews come from; see PackageCache."""

    def checkpoint(self, source: CheckpointPackages) -> CheckpointFiles:
        """Return the files of a base checkpoint."""
        ...

    def reviews(self) -> Path:
        """Return the file of labelled reviews."""
        ...


class SentimentBuilder:
    """Builds the sentiment model into a repository, doing only what is not done yet."""

    def __init__(
        self,
        repository: Path,
        packages: Sources,
        progress: Progress,
        clock_ns: Callable[[], int],
        recipes: Sequence[Recipe] = RECIPES,
    ) -> None:
        self._folder = repository / sentiment.NAME
        self._packages = packages
        self._recipes = recipes
        self._progress = Stoppable(progress)
        self._clock_ns = clock_ns
        self._code = code_digest()
        self._bases: dict[str, CheckpointFiles] = {}
        self._shared: dict[str, FileRef] = {}
        self._measurement = Measurement(self._folder, engine_identity(), Session, self._progress)
        self._made: list[str] = []

    def build(self, *, small: bool = False) -> BuildReport:
        """Build every variant, or with ``small`` only those of the small base, and the manifest.

        Variants that an earlier build finished stay in the manifest, those that this one does not
        look after also when other code made them. Raises PackageError, CheckpointError or the
        engine's ModelLoadError.
        """
        jobs = [job for job in jobs_of(self._recipes) if job.recipe.small or not small]
        bases = {job.recipe.family: job.recipe.base for job in jobs}
        self._bases = {family: self._packages.checkpoint(base) for family, base in bases.items()}
        reviews = read_reviews(self._packages.reviews())
        population = held_out_population(POPULATION, reviews, REVIEWS_FILE.sha256)
        with exclusive(self._folder):
            for family in self._bases:
                self._tokenizer(family)
            self._shared = {job.recipe.family: self._shared_file(job) for job in jobs}
            evidence = BuildEvidence(
                self._folder,
                self._measurement,
                self._shared,
                population,
                self._progress,
                self._clock_ns,
            )
            eights = [job for job in jobs if job.precision == "int8"]
            with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
                self._each(pool, self._made_variant, jobs)
                self._each(pool, evidence.weigh, eights)
                # What takes longest first, so that the cores end together.
                self._each(pool, evidence.measure, [*eights, *(job.twin for job in eights)])
                self._each(pool, evidence.compare, eights)
                self._each(pool, evidence.answer_fitting, evidence.stages(jobs))
            return self._finish(jobs, population, evidence.measured)

    def _each(self, pool: Executor, step: Callable[[Job], object], jobs: Sequence[Job]) -> None:
        """Take a step for every job; the first failure, or an interrupt, stops the others."""
        under_way = [pool.submit(step, job) for job in jobs]
        try:
            for done in under_way:
                done.result()
        except BaseException:
            for waiting in under_way:
                waiting.cancel()
            self._progress.stop()
            raise

    def _made_variant(self, job: Job) -> VariantRecord:
        """Return the finished variant, making it when its inputs or files changed."""
        key = self._key(job)
        record = load_record(self._folder, job.name)
        if (
            record is not None
            and record.key == key
            and (settled(self._folder, job, record) or complete(self._folder, record.files))
        ):
            return record
        with self._progress.step(f"making {job.name}", 1, "items") as report:
            encoder = self._encoder(job.recipe)
            variant, files = write_variant(
                self._folder,
                encoder,
                name=job.name,
                layout="ragged",
                precision=job.precision,
                shared=job.shared,
                tokenizer=job.recipe.family,
                warm_lengths=sentiment.WARM_LENGTHS,
            )
            report(1)
        made = VariantRecord(key, variant, files)
        if record is not None and record.files == files:
            # The same bytes again: their measured quality still holds.
            variant = replace(variant, quality=record.variant.quality)
            made = replace(record, key=key, variant=variant)
            if record.refused:
                made = replace(made, pace_key="", refused="")
        save_record(self._folder, made)
        self._made.append(job.name)
        return made

    def _shared_file(self, job: Job) -> FileRef:
        """Return the finished file of shared weights, making it when its base changed."""
        key = digest(base=job.recipe.base.weights.sha256, code=self._code)
        record = load_shared(self._folder, job.shared)
        if record is not None and record.key == key and complete(self._folder, [record.file]):
            return record.file
        with self._progress.step(f"making {job.shared}", 1, "items") as report:
            file = write_shared(self._folder, self._encoder(job.recipe), job.shared)
            report(1)
        save_shared(self._folder, SharedRecord(key, file))
        return file

    def _finish(
        self, jobs: Sequence[Job], population: Population, measured: tuple[str, ...]
    ) -> BuildReport:
        files: dict[str, FileRef] = {}
        made, refused, families, kept = [], [], [], []
        before = _manifest_before(self._folder)
        for job in jobs_of(self._recipes):
            record = load_record(self._folder, job.name)
            if record is None:
                continue
            if record.key != self._key(job):
                if job in jobs or not self._untouched(job, record, before):
                    continue
                kept.append(job.name)
            if record.refused:
                refused.append((job.name, record.refused))
            elif complete(self._folder, record.files) and record.evidence_key:
                made.append(record)
                if record.variant.quality:
                    off = sentiment.deviation(job.name, record.variant.quality[0].value)
                    if off:
                        self._progress.note(off)
                files |= {ref.path: ref for ref in record.files}
                families.append(job.recipe.family)
                for path in (job.shared, job.tokenizer):
                    if path not in files:
                        files[path] = describe_file(self._folder, path)
        gone = _names(before) - {record.variant.name for record in made} - {n for n, _ in refused}
        refused += [(name, _GONE) for name in sorted(gone)]
        present = dict.fromkeys(families)
        manifest = Manifest(
            schema=SCHEMA,
            name=sentiment.NAME,
            version=sentiment.VERSION,
            task="text-classification",
            labels=sentiment.LABELS,
            primary_output=OUTPUT,
            default_tokenizer=next(iter(present)),
            tokenizers={family: files[f"tokenizers/{family}.json"] for family in present},
            variants=_with_further_evidence(made, before),
            files=files,
            runtime={
                "built_by": "orchid",
                "engine": runtime_info().library_version,
                "onnx": onnx.__version__,
                "opset": str(OPSET),
                "custom_ops": "orchid 1",
            },
        )
        manifest = confident(manifest, self._folder, self._measurement, population, self._progress)
        save_manifest(manifest, self._folder)
        return BuildReport(
            self._folder, manifest, tuple(self._made), measured, tuple(refused), tuple(kept)
        )

    def _untouched(self, job: Job, record: VariantRecord, before: Manifest | None) -> bool:
        """Whether a variant and what it shares are, to the byte, what the manifest lists."""
        if before is None or before.variant(job.name) is None:
            return False
        paths = [*(ref.path for ref in record.files), job.shared, job.tokenizer]
        refs = [before.files.get(path) for path in paths]
        return all(ref is not None and file_fault(self._folder, ref) is None for ref in refs)

    def _tokenizer(self, family: str) -> None:
        target = self._folder / "tokenizers" / f"{family}.json"
        target.parent.mkdir(exist_ok=True)
        document = plain_tokenizer(self._bases[family].tokenizer)
        if not target.is_file() or target.read_bytes() != document:
            partial = target.with_suffix(".partial")
            partial.write_bytes(document)
            partial.replace(target)

    def _encoder(self, recipe: Recipe) -> Encoder:
        files = self._bases[recipe.family]
        document = read_json(files.config) | {"num_hidden_layers": recipe.layers}
        config = encoder_config(document)
        with SafetensorsFiles([files.weights]) as base, SafetensorsFiles([recipe.adapter]) as own:
            weights = MergedWeights(base, own)
            return read_encoder(config, weights, classifier_head(config.family, weights))

    def _key(self, job: Job) -> str:
        return digest(
            code=self._code,
            base=job.recipe.base.weights.sha256,
            adapter=describe_file(job.recipe.adapter.parent, job.recipe.adapter.name).sha256,
            layers=job.recipe.layers,
            precision=job.precision,
            warm=sentiment.WARM_LENGTHS,
        )


def _names(manifest: Manifest | None) -> set[str]:
    return set() if manifest is None else {variant.name for variant in manifest.variants}


def _manifest_before(folder: Path) -> Manifest | None:
    try:
        return load_manifest(folder)
    except ManifestError:
        return None


def _with_further_evidence(
    made: Sequence[VariantRecord], before: Manifest | None
) -> tuple[Variant, ...]:
    """Keep what `orchid models evaluate` measured of the same files before."""
    known: dict[str, Variant] = {}
    for record in made:
        old = None if before is None else before.variant(record.variant.name)
        if before is None or old is None:
            continue
        if all(before.files.get(ref.path) == ref for ref in record.files):
            known[old.name] = old
    return tuple(_with_evidence_of(record.variant, known) for record in made)


def _with_evidence_of(variant: Variant, known: Mapping[str, Variant]) -> Variant:
    """Add what is known of a variant, and of it beside others that are known as well."""
    old = known.get(variant.name)
    if old is None:
        return variant
    return replace(
        variant,
        quality=merged(old.quality, variant.quality),
        calibrations=old.calibrations,
        escalations=tuple(item for item in old.escalations if item.to in known),
    )
