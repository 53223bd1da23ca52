"""Looks at a repository: which models it has and whether their files are sound."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from worker.models.errors import ManifestError, ModelError
from worker.models.manifest import MANIFEST_NAME, Fault, Manifest, load_manifest, verify

DEFAULT_FOLDER = "models"
VARIABLE = "ORCHID_REPOSITORY"
# Bytes of a file's name, with room for what is written beside it first.
_LONGEST_NAME = 200


@dataclass(frozen=True, slots=True)
class Listing:
    """One folder of a repository: its manifest, or why that cannot be read."""

    name: str
    manifest: Manifest | None
    fault: str = ""


def default_repository() -> Path:
    """Return the repository that ORCHID_REPOSITORY names, else ``models`` in the working folder."""
    return Path(os.environ.get(VARIABLE) or DEFAULT_FOLDER)


def model_folder(repository: Path, name: str) -> Path:
    """Return the folder of a model, there or not; ManifestError for what is no name of one.

    Names also come from manifests of others: none leads out of the repository.
    """
    fits = name and not name.startswith(".") and name.isprintable() and not {*"/\\"} & {*name}
    if not fits or len(name.encode(errors="replace")) > _LONGEST_NAME:
        raise ManifestError(
            f"a model's name: one folder of the repository, of 1 to {_LONGEST_NAME} bytes, that "
            "does not begin with a dot",
            repr(name[:_LONGEST_NAME]),
            "give another name",
        )
    return repository / name


def list_models(repository: Path) -> list[Listing]:
    """Return every model of a repository by name; none when the folder does not exist."""
    found = []
    for manifest in sorted(repository.glob(f"*/{MANIFEST_NAME}")):
        folder = manifest.parent
        try:
            found.append(Listing(folder.name, load_manifest(folder)))
        except ModelError as error:
            found.append(Listing(folder.name, None, str(error)))
    return found


def find_model(repository: Path, name: str) -> Manifest:
    """Return the manifest of one model.

    Raises ManifestError naming the models that exist, or the manifest's own fault.
    """
    folder = model_folder(repository, name)
    if not (folder / MANIFEST_NAME).is_file():
        names = ", ".join(listing.name for listing in list_models(repository))
        remedy = "name one of these or build it" if names else "orchid models build makes one"
        raise ManifestError(f"a model {name!r} in {repository}", names or "no model", remedy)
    return load_manifest(folder)


def verify_model(repository: Path, name: str) -> list[Fault]:
    """Check every file of a model by hash and return all faults.

    Raises ManifestError when there is no such model or its manifest is unusable.
    """
    find_model(repository, name)
    return verify(repository / name)


def resident_bytes(manifest: Manifest, variant: str) -> int:
    """Return the bytes of the files that only ``variant`` needs, its graph and own weights."""
    return sum(
        ref.size for path, ref in manifest.files.items() if path in _own_files(manifest, variant)
    )


def _own_files(manifest: Manifest, variant: str) -> set[str]:
    found = manifest.variant(variant)
    return set() if found is None else {found.graph, f"{variant}.weights"}
