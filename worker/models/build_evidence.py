"""Times and measures the variants of a build.

All of them answer the items that accuracy is measured on. What may be a stage of a cascade, since
no faster variant is as accurate, also answers those that confidence is fitted on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from worker.engine import Session, machine_class, runtime_info
from worker.hosted import graph_files
from worker.models.dataset import POPULATION
from worker.models.jobs import Job
from worker.models.manifest import FileRef, describe_file
from worker.models.measurement import Measured, Measurement, accuracies
from worker.models.pace import frontier, loses, relative_time, slow
from worker.models.populations import Population
from worker.models.progress import Progress
from worker.models.records import VariantRecord, digest, load_record, save_record

OUTPUT = "logits"


class BuildEvidence:
    """Measures variants of the model in ``folder`` and keeps what was found in their records.

    ``shared`` are the files of shared weights by family, ``clock_ns`` a clock of the calling
    thread's CPU time. Different variants may be measured by several threads.
    """

    def __init__(
        self,
        folder: Path,
        measurement: Measurement,
        shared: Mapping[str, FileRef],
        population: Population,
        progress: Progress,
        clock_ns: Callable[[], int],
    ) -> None:
        self._folder = folder
        self._measurement = measurement
        self._shared = shared
        self._population = population
        self._progress = progress
        self._clock_ns = clock_ns
        self._measured: list[str] = []

    @property
    def measured(self) -> tuple[str, ...]:
        """Variants that were run since this was made."""
        return tuple(dict.fromkeys(self._measured))

    def weigh(self, job: Job) -> None:
        """Time a variant in 8 bits beside its twin, and refuse it when it is hardly faster."""
        record, twin = self._record(job), self._record(job.twin)
        key = pace_key(record, twin)
        if record.pace_key == key and (twin.pace_ns or record.refused):
            return
        with self._progress.step(f"weighing {job.name}", 1, "items") as report:
            pace = relative_time(
                Session(self._folder / record.variant.graph),
                Session(self._folder / twin.variant.graph),
                self._clock_ns,
            )
            report(1)
        save_record(self._folder, replace(twin, pace_ns=pace.baseline_ns))
        record = replace(record, pace_key=key, pace_ns=pace.candidate_ns, refused="")
        self._settle(record, slow(pace.ratio))

    def measure(self, job: Job) -> None:
        """Measure the accuracy of a variant that was not refused."""
        record = self._record(job)
        key = self._key(job, record)
        if settled(self._folder, job, record) or record.evidence_key == key:
            return
        answers = self._measurement.answers(self._as_run(job), self._population)
        variant = replace(record.variant, quality=accuracies(self._population, answers))
        save_record(self._folder, replace(record, variant=variant, evidence_key=key))
        self._measured.append(job.name)

    def compare(self, job: Job) -> None:
        """Refuse a variant in 8 bits that loses accuracy against its twin."""
        record = self._record(job)
        own = record.variant.evidence(POPULATION)
        other = self._record(job.twin).variant.evidence(POPULATION)
        if record.refused or own is None or other is None:
            return
        if reason := loses(other.value - own.value):
            self._settle(record, reason)

    def stages(self, jobs: Sequence[Job]) -> list[Job]:
        """Return the variants that routing may choose, by their accuracy and time."""
        points = {}
        for job in jobs:
            record = self._record(job)
            if record.variant.quality and not record.refused:
                points[job.name] = (record.pace_ns, record.variant.quality[0].value)
        chosen = frontier(points)
        return [job for job in jobs if job.name in chosen]

    def answer_fitting(self, job: Job) -> None:
        """Run a variant on the items that confidence is fitted on."""
        measured = self._as_run(job)
        # Without its answers to the others there is nothing to test a fit on.
        if self._population.fitting and self._measurement.kept(measured, self._population):
            self._measurement.answers(measured, self._population.fitting)

    def _settle(self, record: VariantRecord, refused: str) -> None:
        save_record(self._folder, replace(record, refused=refused))
        if refused:
            self._progress.note(f"{record.variant.name} is not served: {refused}")
            for ref in record.files:
                (self._folder / ref.path).unlink(missing_ok=True)

    def _as_run(self, job: Job) -> Measured:
        record = self._record(job)
        files = self._files(job, record)
        return Measured(
            record.variant,
            graph_files(self._folder, record.variant.graph, {ref.path: ref for ref in files}),
            describe_file(self._folder, job.tokenizer),
            OUTPUT,
        )

    def _files(self, job: Job, record: VariantRecord) -> list[FileRef]:
        return [self._shared[job.recipe.family], *record.files]

    def _key(self, job: Job, record: VariantRecord) -> str:
        return digest(
            files=[ref.sha256 for ref in self._files(job, record)],
            data=[self._population.source, "with confidence"],
            engine=_engine_identity(),
        )

    def _record(self, job: Job) -> VariantRecord:
        record = load_record(self._folder, job.name)
        if record is None:
            raise RuntimeError(f"expected a record of {job.name}, which was made, got none")
        return record


def settled(folder: Path, job: Job, record: VariantRecord) -> bool:
    """Tell whether a variant was refused and nothing changed since."""
    twin = load_record(folder, job.twin.name)
    return bool(record.refused) and twin is not None and record.pace_key == pace_key(record, twin)


def pace_key(record: VariantRecord, twin: VariantRecord) -> str:
    """Return the key of a speed comparison: both variants' files, the machine and the engine."""
    return digest(
        candidate=[ref.sha256 for ref in record.files],
        baseline=[ref.sha256 for ref in twin.files],
        machine=[machine_class(), *_engine_identity()],
        kept="ratio and times",
    )


def _engine_identity() -> list[str]:
    info = runtime_info()
    return [info.library_version, info.simd]
