"""The recorded answers of all variants to the same items, without the items.

``profiles/confidences-<population>.npz`` beside a manifest: a compressed numpy archive with
``tokens`` int32 [N] (by the model's default tokenizer), ``labels`` int32 [N] and, under each
variant's name, its logits float32 [N, classes]. What was right and how sure an answer was is
therefore known of all variants at once, as a simulator of cascades needs it.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from worker.models.errors import CheckpointError

FOLDER = "profiles"
TOKENS, LABELS = "tokens", "labels"


@dataclass(frozen=True, slots=True)
class Recorded:
    """Lengths [N] in tokens, labels [N], and logits [N, classes] by variant, of N items."""

    tokens: NDArray[np.int32]
    labels: NDArray[np.int32]
    logits: Mapping[str, NDArray[np.float32]]


def recorded_path(folder: Path, population: str) -> Path:
    """Where the answers of a model's variants to the items of a population lie."""
    return folder / FOLDER / f"confidences-{population}.npz"


def write_recorded(path: Path, recorded: Recorded) -> None:
    """Write the archive, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    # The two names of the format win over variants that are called so.
    arrays: dict[str, Any] = {
        **recorded.logits,
        TOKENS: recorded.tokens,
        LABELS: recorded.labels,
    }
    with partial.open("wb") as stream:
        np.savez_compressed(stream, **arrays)
    partial.replace(path)


def read_recorded(path: Path) -> Recorded:
    """Read an archive; half precision becomes single. Raises CheckpointError for anything else."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        recorded = Recorded(
            tokens=arrays.pop(TOKENS).astype(np.int32),
            labels=arrays.pop(LABELS).astype(np.int32),
            logits={name: array.astype(np.float32) for name, array in arrays.items()},
        )
    except (OSError, ValueError, KeyError, EOFError, TypeError, zipfile.BadZipFile) as error:
        raise CheckpointError(
            f"recorded answers in {path}",
            getattr(error, "strerror", None) or str(error) or "no archive",
            "`orchid models evaluate` records them",
        ) from None
    n = len(recorded.labels)
    shapes = [array.shape for array in recorded.logits.values()]
    if recorded.tokens.shape != (n,) or any(len(s) != 2 or s[0] != n for s in shapes):
        raise CheckpointError(
            f"as many lengths and logits as labels, {n}, in {path}",
            f"{recorded.tokens.shape}, {shapes}",
            "`orchid models evaluate` records them",
        )
    return recorded
