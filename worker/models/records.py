"""What a build remembers of each variant, so that finished work is never done again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from worker.models import emitter, encoders, entry, families, graph, padded, quantize, ragged
from worker.models import weights as weight_files
from worker.models.manifest import FileRef, Variant

FOLDER = ".build"

_SOURCES = (emitter, encoders, entry, families, graph, padded, quantize, ragged, weight_files)


@dataclass(frozen=True, slots=True)
class VariantRecord:
    """One finished variant: the key of what it was made from, its files and its measurements.

    ``evidence_key`` and ``pace_key`` name what the quality and the speed were measured with and
    are empty before that; ``refused`` says why the variant is not served, or is empty.
    ``pace_ns`` is the best CPU time of a row of 32 tokens, 0 before it was measured.
    """

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)

    key: str
    variant: Variant
    files: tuple[FileRef, ...]
    evidence_key: str = ""
    pace_key: str = ""
    pace_ns: int = 0
    refused: str = ""


@dataclass(frozen=True, slots=True)
class SharedRecord:
    """A finished file that several variants refer to, with the key of what it was made from."""

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)

    key: str
    file: FileRef


_VARIANT: TypeAdapter[VariantRecord] = TypeAdapter(VariantRecord)
_SHARED: TypeAdapter[SharedRecord] = TypeAdapter(SharedRecord)


def digest(**parts: Any) -> str:
    """Return a digest of named JSON values."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def code_digest(modules: Sequence[ModuleType] = _SOURCES) -> str:
    """Return a digest of the code that turns checkpoints into graphs and weight files."""
    code = hashlib.sha256()
    for module in modules:
        code.update(Path(str(module.__file__)).read_bytes())
    return code.hexdigest()


def load_record(folder: Path, name: str) -> VariantRecord | None:
    """Return what is remembered of a variant; None when nothing usable is."""
    try:
        return _VARIANT.validate_json((folder / FOLDER / f"{name}.json").read_bytes())
    except (OSError, ValidationError):
        return None


def save_record(folder: Path, record: VariantRecord) -> None:
    """Remember a variant; an interruption leaves the old memory or the new one."""
    _write(folder / FOLDER / f"{record.variant.name}.json", _VARIANT.dump_json(record, indent=2))


def load_shared(folder: Path, path: str) -> SharedRecord | None:
    """Return what is remembered of a shared file; None when nothing usable is."""
    try:
        return _SHARED.validate_json((folder / FOLDER / f"{path}.json").read_bytes())
    except (OSError, ValidationError):
        return None


def save_shared(folder: Path, record: SharedRecord) -> None:
    """Remember a shared file."""
    _write(folder / FOLDER / f"{record.file.path}.json", _SHARED.dump_json(record, indent=2))


def complete(folder: Path, files: Iterable[FileRef]) -> bool:
    """Tell whether every one of ``files`` is there with its size."""
    return all(
        (folder / ref.path).is_file() and (folder / ref.path).stat().st_size == ref.size
        for ref in files
    )


def _write(target: Path, content: bytes) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_suffix(".partial")
    partial.write_bytes(content)
    partial.replace(target)
