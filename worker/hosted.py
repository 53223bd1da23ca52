"""One model as the host holds it, and the snapshots it shows to others."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path, PurePosixPath

from tokenizers import Tokenizer

from worker.errors import ModelLoadError
from worker.execution import Session
from worker.models.external_data import confined
from worker.models.manifest import FileRef, Manifest, Variant, size_fault
from worker.profile import VariantProfile
from worker.records import Item
from worker.scheduling.cost import StepCost


class ModelState(Enum):
    """Where a model is between its files and its answers."""

    LOADING = "loading"
    WARMING = "warming"
    READY = "ready"
    FAILED = "failed"
    UNLOADING = "unloading"


@dataclass(frozen=True, slots=True)
class DecodeCapacity:
    """What a decoder can hold and how fast it steps.

    `token_bytes` are those of the keys and values of one token, `arena_tokens` the tokens that
    fit into its arena.
    """

    token_bytes: int
    arena_tokens: int
    cost: StepCost | None = None


@dataclass(frozen=True, slots=True)
class VariantSnapshot:
    """One variant as it was at one moment; `resident_bytes` is what its files map."""

    variant: Variant
    ready: bool
    profile: VariantProfile | None
    resident_bytes: int
    decode: DecodeCapacity | None = None


@dataclass(frozen=True, slots=True)
class ModelSnapshot:
    """One model as it was at one moment; `progress` runs from 0 to 1 while it loads or warms."""

    manifest: Manifest
    digest: str
    folder: Path
    state: ModelState
    progress: float
    failure: str
    variants: tuple[VariantSnapshot, ...]


@dataclass(frozen=True, slots=True)
class LoadedVariant:
    """A session that can run; `vocabulary` bounds its token ids, 0 when unknown.

    `decode` is set for decoders.
    """

    variant: Variant
    session: Session
    vocabulary: int
    resident_bytes: int
    profile: VariantProfile | None = None
    decode: DecodeCapacity | None = None

    def predict_us(self, items: Collection[Item]) -> float:
        """Predicted time of a run of these items; infinite for tensors and without a profile."""
        lengths = [length for item in items for length in item.lengths]
        if self.profile is None or not lengths:
            return math.inf
        return self.profile.predict_us(lengths)


@dataclass(slots=True)
class HostedModel:
    """A model the host was told to hold; guarded by the host's lock."""

    manifest: Manifest
    folder: Path
    wanted: tuple[Variant, ...]
    state: ModelState = ModelState.LOADING
    progress: float = 0.0
    failure: str = ""
    loaded: dict[str, LoadedVariant] = field(default_factory=dict)
    # Files whose content was found to be what the manifest records.
    checked: set[str] = field(default_factory=set)
    # The manifest does not change while it is held, and its digest costs a hash.
    digest: str = ""

    def __post_init__(self) -> None:
        self.digest = self.manifest.digest

    def snapshot(self) -> ModelSnapshot:
        """The model as it is now, with every variant it was told to hold."""
        return ModelSnapshot(
            manifest=self.manifest,
            digest=self.digest,
            folder=self.folder,
            state=self.state,
            progress=self.progress,
            failure=self.failure,
            variants=tuple(self._variant(variant) for variant in self.wanted),
        )

    def _variant(self, variant: Variant) -> VariantSnapshot:
        loaded = self.loaded.get(variant.name)
        usable = self.state is not ModelState.UNLOADING and loaded is not None
        return VariantSnapshot(
            variant=variant,
            ready=usable,
            profile=loaded.profile if loaded else None,
            resident_bytes=loaded.resident_bytes if loaded else 0,
            decode=loaded.decode if loaded else None,
        )


def variant_files(folder: Path, manifest: Manifest, variant: Variant) -> Mapping[str, FileRef]:
    """The files a variant maps: its graph, and every weight file that the graph names.

    Raises ModelLoadError when a file is missing, has not the size the manifest gives, is not among
    the manifest's files, or is not inside the graph's folder.
    """
    return graph_files(folder, variant.graph, manifest.files)


def graph_files(folder: Path, path: str, files: Mapping[str, FileRef]) -> Mapping[str, FileRef]:
    """The same of the graph at `path` among `files`; raises like `variant_files`."""
    graph = folder / path
    try:
        content = graph.read_bytes()
    except OSError as error:
        raise ModelLoadError(f"cannot read {graph}: {error.strerror}") from None
    start = PurePosixPath(path).parent
    found = {path: files[path]}
    for name in confined(graph, content):
        weights = (start / name).as_posix()
        if weights not in files:
            raise ModelLoadError(
                f"{path} names weights in {weights[:200]!r}, which the manifest does not list"
            )
        found[weights] = files[weights]
    for ref in found.values():
        if (fault := size_fault(folder, ref)) is not None:
            raise ModelLoadError(f"{folder}/{fault}")
    return found


def vocabulary_size(folder: Path, manifest: Manifest, variant: Variant) -> int:
    """One more than the highest token id of a variant's tokenizer; 0 for the tensor layout.

    Raises ModelLoadError when the tokenizer cannot be read.
    """
    if not variant.tokenizer:
        return 0
    path = folder / manifest.tokenizers[variant.tokenizer].path
    try:
        ids = Tokenizer.from_file(str(path)).get_vocab(with_added_tokens=True).values()
    except Exception as error:  # the library raises plain Exception
        raise ModelLoadError(f"cannot read tokenizer {path}: {error}") from None
    return max(ids, default=-1) + 1


def listed(names: Collection[str] | Iterator[str]) -> str:
    """Names for an error text."""
    return ", ".join(names) or "none"
