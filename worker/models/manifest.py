"""The manifest: what one model of a repository is, file by file.

A repository is a directory with one folder a model; each folder holds
``manifest.json`` and the files it lists. The digest of the manifest is the
identity that traces and responses carry.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Literal

from pydantic import ConfigDict, TypeAdapter, ValidationError

from worker.models.calibration import (
    Calibration,
    Escalation,
    calibration_faults,
    escalation_faults,
)
from worker.models.errors import ManifestError

MANIFEST_NAME = "manifest.json"
SCHEMA = 1

Task = Literal["text-classification", "embedding", "tensor", "text-generation"]
Layout = Literal["ragged", "padded", "tensor", "paged", "dense"]
# Layouts of decoders: keys and values in an arena, or as tensors that go in and come out.
DECODER_LAYOUTS: tuple[Layout, ...] = ("paged", "dense")
GENERATION: Task = "text-generation"
# Element types of tensors that the engine takes.
DTYPES = frozenset(
    {"float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "bool", "string"}
)
# Of sizes and counts: runs have them in int32, messages in uint32.
LARGEST = 2**31 - 1

_STRICT = ConfigDict(extra="forbid", strict=True)


@dataclass(frozen=True, slots=True)
class FileRef:
    """One file of a model: path relative to the model's folder, sha256 in hex, size in bytes."""

    __pydantic_config__ = _STRICT

    path: str
    sha256: str
    size: int


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Name, numpy dtype name (or ``string``) and shape of a tensor; -1 is a free dimension."""

    __pydantic_config__ = _STRICT

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class QualityEvidence:
    """A measured quality: value of ``metric`` on ``n`` items of ``population``, with its interval.

    ``low`` and ``high`` bound the 95 % interval: Wilson's score interval for shares, a normal one
    over windows of text for perplexities and divergences.
    """

    __pydantic_config__ = _STRICT

    population: str
    metric: str
    value: float
    n: int
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Variant:
    """One graph of a model.

    ``tokenizer`` names an entry of ``Manifest.tokenizers`` and is empty for the tensor layout;
    ``max_tokens`` bounds one sequence, specials included, and is 0 for the tensor layout;
    ``warm_lengths`` are the sequence lengths the warm-up measures; ``calibrations`` and
    ``escalations`` say how sure its answers are and what more accurate variants gain on them.
    """

    __pydantic_config__ = _STRICT

    name: str
    layout: Layout
    precision: str
    graph: str
    tokenizer: str
    max_tokens: int
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    quality: tuple[QualityEvidence, ...] = ()
    warm_lengths: tuple[int, ...] = ()
    calibrations: tuple[Calibration, ...] = ()
    escalations: tuple[Escalation, ...] = ()

    def evidence(self, population: str) -> QualityEvidence | None:
        """Return the evidence measured on ``population``, if there is any."""
        return next((item for item in self.quality if item.population == population), None)

    def calibration(self, population: str) -> Calibration | None:
        """Return the calibration on ``population``, if there is one."""
        return next((item for item in self.calibrations if item.population == population), None)


@dataclass(frozen=True, slots=True)
class KvGeometry:
    """Keys and values a decoder keeps of each token: layers * kv_heads * head_dim of each."""

    __pydantic_config__ = _STRICT

    layers: int
    kv_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True)
class Generation:
    """What generating text with a decoder needs beside its graphs.

    ``chat_template`` is a Jinja template over ``messages`` or empty; any of ``end_tokens`` ends
    an answer; ``begin_token`` starts a sequence, if there is one; token ids are below
    ``vocabulary`` and a sequence has at most ``context`` tokens.
    """

    __pydantic_config__ = _STRICT

    chat_template: str
    end_tokens: tuple[int, ...]
    begin_token: int | None
    vocabulary: int
    context: int
    kv: KvGeometry


@dataclass(frozen=True, slots=True)
class Manifest:
    """Everything a server needs to know of a model; see ``docs/models.md`` for each field."""

    __pydantic_config__ = _STRICT

    schema: int
    name: str
    version: str
    task: Task
    labels: tuple[str, ...]
    primary_output: str
    default_tokenizer: str
    tokenizers: Mapping[str, FileRef]
    variants: tuple[Variant, ...]
    files: Mapping[str, FileRef]
    floors: Mapping[str, float] = field(default_factory=dict)
    runtime: Mapping[str, str] = field(default_factory=dict)
    generation: Generation | None = None

    @property
    def digest(self) -> str:
        """``sha256:`` and the hex digest of the canonical JSON: the deployment identity."""
        return "sha256:" + hashlib.sha256(canonical_json(self)).hexdigest()

    def variant(self, name: str) -> Variant | None:
        """Return the variant called ``name``, if there is one."""
        return next((variant for variant in self.variants if variant.name == name), None)


@dataclass(frozen=True, slots=True)
class Fault:
    """One way in which a model's folder is not what its manifest says."""

    path: str
    expected: str
    got: str

    def __str__(self) -> str:
        return f"{self.path}: expected {self.expected}, got {self.got}"


_ADAPTER: TypeAdapter[Manifest] = TypeAdapter(Manifest)


def canonical_json(manifest: Manifest) -> bytes:
    """Return the manifest as JSON with sorted keys and no white space."""
    document = _ADAPTER.dump_python(manifest, mode="json")
    if manifest.generation is None:
        # What a model does not have is not part of its identity.
        del document["generation"]
    for variant in document["variants"]:
        for evidence in ("calibrations", "escalations"):
            if not variant[evidence]:
                del variant[evidence]
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def load_manifest(path: Path) -> Manifest:
    """Read and check a manifest; ``path`` is a model's folder or the manifest file itself.

    Raises ManifestError when the file is missing, malformed or contradicts itself.
    """
    file = path / MANIFEST_NAME if path.is_dir() else path
    try:
        text = file.read_bytes()
    except OSError as error:
        raise ManifestError(
            f"a manifest at {file}",
            error.strerror or "an unreadable file",
            "build the model with `orchid models build` or name its folder",
        ) from error
    return read_manifest(text, str(file))


def read_manifest(text: bytes, file: str) -> Manifest:
    """Check the text of a manifest; `file` names it in errors. Raises ManifestError."""
    try:
        manifest = _ADAPTER.validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the document"
        raise ManifestError(
            f"a manifest of schema {SCHEMA} in {file}",
            f"{error.error_count()} faults, first at {where}: {first['msg']}",
            "build the model again",
        ) from error
    problems = contradictions(manifest)
    if problems:
        raise ManifestError(
            f"a consistent manifest in {file}", "; ".join(problems), "build the model again"
        )
    return manifest


def save_manifest(manifest: Manifest, folder: Path) -> Path:
    """Write the manifest into ``folder`` atomically and return its path.

    Raises ManifestError when the manifest contradicts itself.
    """
    problems = contradictions(manifest)
    if problems:
        raise ManifestError("a consistent manifest", "; ".join(problems), "correct these fields")
    target = folder / MANIFEST_NAME
    partial = target.with_suffix(".json.partial")
    partial.write_bytes(_ADAPTER.dump_json(manifest, indent=2) + b"\n")
    partial.replace(target)
    return target


def contradictions(manifest: Manifest) -> list[str]:
    """Return every inner contradiction of a manifest; empty when it is sound."""
    found: list[str] = []
    if manifest.schema != SCHEMA:
        found.append(f"schema is {manifest.schema}, this program reads {SCHEMA}")
    if not manifest.variants:
        found.append("there is no variant")
    names = [variant.name for variant in manifest.variants]
    twice = sorted({name for name in names if names.count(name) > 1})
    found += [f"variant {name!r} appears twice" for name in twice]
    for path, ref in manifest.files.items():
        pure = PurePosixPath(path)
        if path != ref.path:
            found.append(f"file {path!r} is recorded as {ref.path!r}")
        if pure.is_absolute() or ".." in pure.parts or not pure.parts:
            found.append(f"file {path!r} is not inside the model's folder")
    for name, ref in manifest.tokenizers.items():
        if manifest.files.get(ref.path) != ref:
            found.append(f"tokenizer {name!r} is not among the files")
    if manifest.default_tokenizer and manifest.default_tokenizer not in manifest.tokenizers:
        found.append(f"default tokenizer {manifest.default_tokenizer!r} is not listed")
    found += _generation_faults(manifest)
    for variant in manifest.variants:
        faults = _variant_faults(manifest, variant)
        found += [f"variant {variant.name!r}: {text}" for text in faults]
    return found


def _generation_faults(manifest: Manifest) -> list[str]:
    generation = manifest.generation
    if (generation is not None) != (manifest.task == GENERATION):
        return [f"task {manifest.task!r} and the section 'generation' do not go together"]
    if generation is None:
        return []
    found = []
    sizes = (generation.kv.layers, generation.kv.kv_heads, generation.kv.head_dim)
    if not all(1 <= n <= LARGEST for n in (*sizes, generation.vocabulary, generation.context)):
        found.append(f"sizes of 'generation' must be 1 to {LARGEST}")
    begin = () if generation.begin_token is None else (generation.begin_token,)
    if not all(0 <= token < generation.vocabulary for token in (*generation.end_tokens, *begin)):
        found.append("tokens of 'generation' must lie in the vocabulary")
    return found


def _variant_faults(manifest: Manifest, variant: Variant) -> list[str]:
    found: list[str] = []
    if variant.graph not in manifest.files:
        found.append(f"graph {variant.graph!r} is not among the files")
    if manifest.primary_output not in {spec.name for spec in variant.outputs}:
        found.append(f"has no output {manifest.primary_output!r}")
    if (variant.layout == "tensor") != (manifest.task == "tensor"):
        found.append(f"layout {variant.layout!r} does not fit task {manifest.task!r}")
    if (variant.layout in DECODER_LAYOUTS) != (manifest.task == GENERATION):
        found.append(f"layout {variant.layout!r} does not fit task {manifest.task!r}")
    if variant.layout != "tensor" and variant.tokenizer not in manifest.tokenizers:
        found.append(f"tokenizer {variant.tokenizer!r} is not among the tokenizers")
    found += _number_faults(variant)
    for calibration in variant.calibrations:
        found += calibration_faults(calibration, len(manifest.labels))
    names = [other.name for other in manifest.variants]
    for escalation in variant.escalations:
        found += escalation_faults(escalation, variant.name, names)
    return found


def _number_faults(variant: Variant) -> list[str]:
    """What of a variant no message could carry, or no run could take."""
    found: list[str] = []
    least = 0 if variant.layout == "tensor" else 1
    if not least <= variant.max_tokens <= LARGEST:
        found.append(f"max_tokens must be {least} to {LARGEST}")
    for spec in (*variant.inputs, *variant.outputs):
        if spec.dtype not in DTYPES:
            found.append(f"tensor {spec.name!r} has the unknown type {spec.dtype!r}")
        if not all(-1 <= size <= LARGEST for size in spec.shape):
            found.append(f"tensor {spec.name!r} has shape {list(spec.shape)}")
    counts = [item.n for item in variant.quality]
    counts += [n for item in variant.calibrations for n in (item.fitted_on, item.n)]
    counts += [n for item in variant.escalations for n in item.counts]
    if not all(0 <= n <= LARGEST for n in counts):
        found.append(f"numbers of items must be 0 to {LARGEST}")
    return found


def describe_file(folder: Path, path: str) -> FileRef:
    """Hash ``folder/path`` and return its reference."""
    file = folder / path
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return FileRef(path, digest, file.stat().st_size)


def size_fault(folder: Path, ref: FileRef) -> Fault | None:
    """What is wrong with the presence or size of one file of the model in ``folder``."""
    file = folder / ref.path
    if not file.is_file():
        return Fault(ref.path, f"{ref.size} bytes", "no such file")
    if (size := file.stat().st_size) != ref.size:
        return Fault(ref.path, f"{ref.size} bytes", f"{size} bytes")
    return None


def file_fault(folder: Path, ref: FileRef) -> Fault | None:
    """What is wrong with one file of the model in ``folder``; None when it is as recorded."""
    if (fault := size_fault(folder, ref)) is not None:
        return fault
    if (digest := describe_file(folder, ref.path).sha256) != ref.sha256:
        return Fault(ref.path, f"sha256 {ref.sha256}", f"sha256 {digest}")
    return None


def verify(path: Path) -> list[Fault]:
    """Check every file of a model against its manifest and return all faults.

    ``path`` is the model's folder. Raises ManifestError when the manifest itself is unusable.
    """
    files = load_manifest(path).files
    found = (file_fault(path, files[name]) for name in sorted(files))
    return [fault for fault in found if fault is not None]
