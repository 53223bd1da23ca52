"""Measured profiles in a file beside the manifest, one for each class of machine.

`orchid profile` writes them; a worker carries those of its own class instead of what its
warm-up measures. A variant's entry holds only for the very files it was measured with.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import ConfigDict, TypeAdapter, ValidationError

from worker import engine
from worker.models.manifest import FileRef
from worker.profile import VariantProfile

log = logging.getLogger(__name__)

FOLDER = "profiles"
SCHEMA = 1

_STRICT = ConfigDict(extra="forbid", strict=True)


class ProfileFileError(Exception):
    """A profile file that cannot be read; the text says which and why."""


@dataclass(frozen=True, slots=True)
class MachineClass:
    """Machines whose timings are interchangeable.

    `cpu` is the engine's short name (vendor, family, model, instruction set), `simd` the
    level of its own kernels, `threads` those of one run.
    """

    __pydantic_config__ = _STRICT

    cpu_model: str
    cpu: str
    simd: str
    threads: int

    def __str__(self) -> str:
        return f"{self.cpu}-{self.simd}-{self.threads}"


@dataclass(frozen=True, slots=True)
class ShapeTime:
    """Times of all runs of one shape, in microseconds, beside what the fit predicts."""

    __pydantic_config__ = _STRICT

    lengths: tuple[int, ...]
    runs: int
    p50_us: float
    p95_us: float
    p99_us: float
    predicted_us: float


@dataclass(frozen=True, slots=True)
class PassNote:
    """One pass over a variant's shapes.

    `ratio` is the median of measured over predicted, `neighbours` how many CPUs other
    processes took meanwhile, `wall_over_cpu` the median of time on the clock over CPU time.
    """

    __pydantic_config__ = _STRICT

    ratio: float
    neighbours: float
    wall_over_cpu: float


@dataclass(frozen=True, slots=True)
class CrossCheck:
    """The same graph, feeds and machine in the onnxruntime package's own session.

    Medians in microseconds of `runs` runs in turns at `lengths`; `ratio` is the median of
    ours over theirs in a turn, `answers_differ` the largest difference of any output element.
    """

    __pydantic_config__ = _STRICT

    lengths: tuple[int, ...]
    runs: int
    ours_us: float
    theirs_us: float
    ratio: float
    answers_differ: float


@dataclass(frozen=True, slots=True)
class MeasuredVariant:
    """One variant's profile and everything that it rests on.

    `content` is the digest of the files that were run and the engine that ran them;
    `spread` the range of the passes' ratios over their median; `fit_error` the largest
    relative difference between a shape's median and the fit.
    """

    __pydantic_config__ = _STRICT

    content: str
    profile: VariantProfile
    shapes: tuple[ShapeTime, ...]
    passes: tuple[PassNote, ...]
    spread: float
    fit_error: float
    check: CrossCheck

    @property
    def neighbours(self) -> float:
        """CPUs that others took, mean over the passes."""
        return sum(note.neighbours for note in self.passes) / max(1, len(self.passes))


@dataclass(frozen=True, slots=True)
class ProfileFile:
    """All measured variants of one model on one class of machine, with where and how."""

    __pydantic_config__ = _STRICT

    schema: int
    model: str
    machine: MachineClass
    host: Mapping[str, str]
    commit: str
    command: str
    finished: str
    variants: Mapping[str, MeasuredVariant]


_ADAPTER: TypeAdapter[ProfileFile] = TypeAdapter(ProfileFile)


def own_machine(threads: int) -> MachineClass:
    """The class of this machine, for runs of so many threads."""
    info = engine.runtime_info()
    return MachineClass(info.cpu_model, engine.machine_class(), info.simd, threads)


def content_digest(files: Iterable[FileRef]) -> str:
    """A digest of a variant's files and of the engine's ONNX Runtime."""
    parts = [engine.runtime_info().library_version, *sorted(ref.sha256 for ref in files)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def profile_path(folder: Path, machine: MachineClass) -> Path:
    """Where the profile of a model's folder for this class of machine lies."""
    return folder / FOLDER / f"{machine}.json"


def read_profile_file(path: Path) -> ProfileFile:
    """Read a profile file; raises ProfileFileError when it is missing or malformed."""
    try:
        found = _ADAPTER.validate_json(path.read_bytes())
    except FileNotFoundError:
        raise ProfileFileError(f"no profile was measured yet: there is no {path}") from None
    except OSError as error:
        raise ProfileFileError(f"cannot read {path}: {error.strerror}") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the document"
        raise ProfileFileError(f"{path} is no profile: {where}: {first['msg']}") from None
    if found.schema != SCHEMA:
        raise ProfileFileError(f"{path} has schema {found.schema}, this program reads {SCHEMA}")
    return found


def write_profile_file(path: Path, file: ProfileFile) -> None:
    """Write a profile file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    document = _ADAPTER.dump_python(file, mode="json")
    partial.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n")
    partial.replace(path)


ProfileOf = Callable[[Path, str, Iterable[FileRef]], VariantProfile | None]
"""Gives the profile of a variant of a model's folder, from these files; None when there is none."""


def no_profile(folder: Path, variant: str, files: Iterable[FileRef]) -> None:
    """A `ProfileOf` that knows none."""


def profiles_of(machine: MachineClass) -> ProfileOf:
    """A `ProfileOf` from the files of this class of machine; one that cannot be used is logged."""

    def profile_of(folder: Path, variant: str, files: Iterable[FileRef]) -> VariantProfile | None:
        try:
            measured = stored_profiles(folder, machine).get(variant)
        except ProfileFileError as error:
            log.warning("variant=%s goes by its warm-up: %s", variant, error)
            return None
        if measured is None or measured.content == content_digest(files):
            return None if measured is None else measured.profile
        log.warning("variant=%s goes by its warm-up: its profile is of other files", variant)
        return None

    return profile_of


def stored_profiles(folder: Path, machine: MachineClass) -> Mapping[str, MeasuredVariant]:
    """The measured variants of a model's folder for this class of machine; empty without a file.

    Raises ProfileFileError when there is a file that cannot be used.
    """
    path = profile_path(folder, machine)
    if not path.is_file():
        return {}
    found = read_profile_file(path)
    if found.machine != machine:
        raise ProfileFileError(f"{path} was measured on {found.machine}, this is {machine}")
    return found.variants
