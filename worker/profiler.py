"""Measures every variant of a model through the call that serves, for a profile file.

Passes go over all variants in turn, so that a slow minute of the machine hits them alike and
shows as a spread between passes. Everything finished is kept: an interrupted profiling goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from worker.errors import EngineFault, InvalidInput
from worker.execution import Session, run_items
from worker.hosted import LoadedVariant, variant_files, vocabulary_size
from worker.independent import Independent, Recorder
from worker.jobs import Token
from worker.meter import HostTimes
from worker.models.errors import ModelError
from worker.models.manifest import Manifest, Variant
from worker.models.progress import Progress
from worker.models.records import digest
from worker.profile import DEFAULT_LENGTHS, warm_plan
from worker.profile_file import (
    MachineClass,
    MeasuredVariant,
    ProfileFileError,
    content_digest,
    profile_path,
    stored_profiles,
)
from worker.profile_runs import (
    PassRuns,
    TimedRun,
    Unfinished,
    check_shape,
    load_unfinished,
    measured_variant,
    objections,
    reference_of,
    save_unfinished,
)
from worker.tensor_sizes import trial_sizes
from worker.warmup import warm_item

# Runs of more tokens than this are made once a pass: their time is long and steady.
_SHORT_TOKENS = 64
_SHORTEST = 8
# Runs of a cross-check that come first and do not count.
_SETTLING = 3


class CrossCheckError(ModelError):
    """Measured times are not what an independent session of the same graph takes."""


@dataclass(frozen=True, slots=True)
class ProfileSettings:
    """How thoroughly to measure.

    In each pass the reference shape runs `reference_runs` times, other short ones
    `short_runs` times, and the independent session `check_runs` times; no single sequence is
    longer than `longest`. `batches` are numbers of equal sequences in a run. Differences from
    the independent session of less than `call_slack_us` are not told apart.
    """

    passes: int = 5
    reference_runs: int = 10
    short_runs: int = 3
    check_runs: int = 4
    longest: int = 256
    batches: tuple[int, ...] = (2, 4, 8)
    call_slack_us: float = 100.0


QUICK = ProfileSettings(
    passes=3, reference_runs=5, short_runs=2, check_runs=3, longest=128, batches=(4,)
)


@dataclass(frozen=True, slots=True)
class ProfileMeans:
    """What a profiling measures with, made by the process and passed down.

    `cpu_ns` is the CPU time of the calling thread, `process_cpu_ns` of the whole process,
    `host` what all CPUs have spent.
    """

    open_session: Callable[[Path], Session]
    make_token: Callable[[], Token]
    now_ns: Callable[[], int]
    cpu_ns: Callable[[], int]
    process_cpu_ns: Callable[[], int]
    host: Callable[[], HostTimes]


def profile_shapes(variant: Variant, settings: ProfileSettings) -> tuple[tuple[int, ...], ...]:
    """The shapes of one pass: single sequences by length, equal ones by number, uneven ones.

    For a variant of tensors, elements count as tokens, as in a worker's warm-up.
    """
    if variant.layout == "tensor":
        return tuple((size,) for size in trial_sizes(variant.inputs))
    limit = min(variant.max_tokens, settings.longest)
    lengths = sorted(
        {min(n, limit) for n in (_SHORTEST, *(variant.warm_lengths or DEFAULT_LENGTHS))}
    )
    usual = warm_plan(variant.warm_lengths, variant.max_tokens)
    member = lengths[min(1, len(lengths) - 1)]
    shapes: list[tuple[int, ...]] = [(length,) for length in lengths]
    shapes += [(member,) * count for count in settings.batches]
    shapes += [shape for shape in usual.shapes if len(shape) > 1 or shape[0] <= limit]
    return tuple(dict.fromkeys(shapes))


class Profiler:
    """Profiles variants of the model in `folder` on runs of `machine.threads` threads."""

    def __init__(
        self,
        folder: Path,
        manifest: Manifest,
        machine: MachineClass,
        settings: ProfileSettings,
        means: ProfileMeans,
        progress: Progress,
    ) -> None:
        self._folder = folder
        self._manifest = manifest
        self._machine = machine
        self._settings = settings
        self._means = means
        self._progress = progress
        path = profile_path(folder, machine)
        self._kept_in = path.with_name(path.stem + ".unfinished")
        self._key = digest(settings=asdict(settings), machine=asdict(machine))
        self._loaded: dict[str, LoadedVariant] = {}

    def forget(self) -> None:
        """Drop what an interrupted run has kept."""
        self._kept_in.unlink(missing_ok=True)

    def run(self, variants: Sequence[Variant]) -> Mapping[str, MeasuredVariant]:
        """Measure the variants, going on from what an interrupted run left.

        Raises CrossCheckError when an independent session says otherwise, and WorkerError when
        a variant does not load or run.
        """
        unfinished = load_unfinished(self._kept_in, self._key)
        contents = {v.name: self._content(v) for v in variants}
        passes = self._settings.passes
        done = sum(len(unfinished.of(v.name, contents[v.name]).passes) for v in variants)
        total = passes * len(variants)
        label = f"profiling {self._manifest.name}"
        with ExitStack() as stack:
            independent = stack.enter_context(Independent(self._machine.threads))
            report = stack.enter_context(self._progress.step(label, total, "items"))
            report(done)
            for number in range(passes):
                for variant in variants:
                    kept = unfinished.of(variant.name, contents[variant.name])
                    if len(kept.passes) > number:
                        continue
                    one = self._pass(variant, independent)
                    unfinished = unfinished.added(variant.name, kept, one)
                    save_unfinished(self._kept_in, unfinished)
                    done += 1
                    report(done)
        return self._judged(variants, contents, unfinished)

    def _judged(
        self, variants: Sequence[Variant], contents: Mapping[str, str], unfinished: Unfinished
    ) -> Mapping[str, MeasuredVariant]:
        self._kept_in.unlink(missing_ok=True)
        found = {}
        faults = []
        for variant in variants:
            kept = unfinished.of(variant.name, contents[variant.name])
            measured = measured_variant(variant, kept)
            faults += objections(variant.name, measured.check, self._settings.call_slack_us)
            found[variant.name] = measured
        if faults:
            raise CrossCheckError(
                "times and answers as in an independent session",
                "; ".join(faults),
                "nothing was written: run it again on a machine with less else to do, and report "
                "it if it stays so",
            )
        return found

    def _content(self, variant: Variant) -> str:
        return content_digest(variant_files(self._folder, self._manifest, variant).values())

    def _pass(self, variant: Variant, independent: Independent) -> PassRuns:
        fresh = variant.name not in self._loaded
        loaded = self._load(variant)
        shapes: list[tuple[int, ...]] = []
        # Longest first, so that buffers grow once; the first run of a shape is not typical.
        for shape in sorted(profile_shapes(variant, self._settings), key=sum, reverse=True):
            try:
                if fresh or sum(shape) <= _SHORT_TOKENS or variant.layout == "tensor":
                    self._timed(loaded, shape)
                shapes.insert(0, shape)
            except (InvalidInput, EngineFault):
                # A graph of tensors may tie its dimensions to each other: other sizes may fit.
                if variant.layout != "tensor":
                    raise
        if not shapes:
            raise InvalidInput(f"variant {variant.name!r} takes no tensors of zeros of any size")
        check = check_shape(shapes, reference_of(variant, shapes))
        begin, own, others = self._readings()
        runs = []
        for shape in shapes:
            again = self._settings.short_runs if sum(shape) <= _SHORT_TOKENS else 1
            again = self._settings.reference_runs if shape == check else again
            runs += [self._timed(loaded, shape) for _ in range(again)]
        end, own_after, others_after = self._readings()
        elapsed = max(end - begin, 1)
        busy = (others_after.busy_s - others.busy_s) * 1e9 - (own_after - own)
        pairs, differ = self._checked(loaded, check, independent)
        return PassRuns(tuple(runs), max(0.0, busy / elapsed), pairs, differ)

    def _checked(
        self, loaded: LoadedVariant, shape: tuple[int, ...], independent: Independent
    ) -> tuple[tuple[tuple[float, float], ...], float]:
        """Runs of the shape here and there in turns, so that both meet the same machine.

        The first ones, after other variants here and a session's opening there, are not typical:
        caches, pages and pools settle within three.
        """
        recorder = Recorder(loaded.session)
        recorded = replace(loaded, session=recorder)
        pairs = []
        largest = 0.0
        for _ in range(_SETTLING + self._settings.check_runs):
            ours = self._timed(recorded, shape).service_us
            theirs, differ = independent.run(self._folder / loaded.variant.graph, recorder)
            pairs.append((ours, theirs))
            largest = max(largest, differ)
        return tuple(pairs[_SETTLING:]), largest

    def _readings(self) -> tuple[int, int, HostTimes]:
        return self._means.now_ns(), self._means.process_cpu_ns(), self._means.host()

    def _load(self, variant: Variant) -> LoadedVariant:
        """The variant in a session like a worker's; all stay open, as they do in a worker."""
        if variant.name not in self._loaded:
            session = self._means.open_session(self._folder / variant.graph)
            vocabulary = vocabulary_size(self._folder, self._manifest, variant)
            self._loaded[variant.name] = LoadedVariant(variant, session, vocabulary, 0)
        return self._loaded[variant.name]

    def _timed(self, loaded: LoadedVariant, shape: tuple[int, ...]) -> TimedRun:
        item = warm_item(loaded.variant, shape, loaded.vocabulary)
        token = self._means.make_token()
        cpu, wall = self._means.cpu_ns(), self._means.now_ns()
        execution = run_items(loaded.session, loaded.variant, loaded.vocabulary, [item], token)
        wall, cpu = self._means.now_ns() - wall, self._means.cpu_ns() - cpu
        for outcome in execution.outcomes:
            if isinstance(outcome, Exception):
                raise outcome
        # One thread is charged its own CPU time: what else the machine did is not in it.
        service = cpu if self._machine.threads == 1 else wall
        return TimedRun(shape, service / 1e3, wall / 1e3)


def kept_variants(
    folder: Path, manifest: Manifest, machine: MachineClass
) -> dict[str, MeasuredVariant]:
    """What the profile file of this class of machine says of files that are still the same."""
    try:
        stored = stored_profiles(folder, machine)
    except ProfileFileError:
        return {}
    found = {}
    for variant in manifest.variants:
        measured = stored.get(variant.name)
        if measured is not None:
            files = variant_files(folder, manifest, variant).values()
            if measured.content == content_digest(files):
                found[variant.name] = measured
    return found
