"""The folder of models that a worker loads from: what lies in it, and whether files are sound."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

from worker.errors import ModelLoadError
from worker.hosted import HostedModel, listed
from worker.models.errors import ManifestError
from worker.models.external_data import check_inside
from worker.models.manifest import MANIFEST_NAME, FileRef, Manifest, file_fault, load_manifest
from worker.refusals import NotFound


class ModelRepository:
    """Models by name, each a folder with a manifest. Reads only; safe from any thread."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def names(self) -> tuple[str, ...]:
        """Names of the folders that hold a manifest, sorted."""
        if not self._root.is_dir():
            return ()
        folders = self._root.iterdir()
        return tuple(sorted(f.name for f in folders if (f / MANIFEST_NAME).is_file()))

    def folder(self, name: str) -> Path:
        """Where a model lies, or would."""
        return self._root / name

    def peek(self, name: str) -> Manifest | None:
        """The manifest as it lies there; None when it cannot be read."""
        try:
            return load_manifest(self.folder(name))
        except ManifestError:
            return None

    def manifest(self, name: str) -> Manifest:
        """The manifest to load a model by; raises NotFound or ModelLoadError."""
        available = self.names()
        if name not in available:
            raise NotFound(f"unknown model {name!r}; the repository has {listed(available)}")
        try:
            manifest = load_manifest(self.folder(name))
        except ManifestError as error:
            raise ModelLoadError(str(error)) from None
        if manifest.name != name:
            raise ModelLoadError(
                f"expected a model called {name!r} in folder {name!r}, got {manifest.name!r}"
            )
        return manifest


def check_unchanged(held: HostedModel) -> None:
    """ModelLoadError when the repository holds another manifest than the model was loaded with.

    One that is gone or unreadable changes nothing for the model that serves.
    """
    with contextlib.suppress(ManifestError):
        if load_manifest(held.folder).digest != held.manifest.digest:
            raise ModelLoadError(
                f"model {held.manifest.name!r} is loaded with another manifest than the "
                "repository holds now; unload it first (`orchid models unload`)"
            )


def check_files(model: HostedModel, files: Iterable[FileRef]) -> None:
    """Files must be what the manifest's digest stands for; shared ones are read once.

    Raises ModelLoadError, also for a file outside the model's folder.
    """
    for ref in files:
        if ref.path in model.checked:
            continue
        check_inside(model.folder.resolve(), ref.path, "the manifest lists a file")
        fault = file_fault(model.folder, ref)
        if fault is not None:
            raise ModelLoadError(
                f"a file is not what the manifest records: {fault}; "
                "build the model again or restore the file"
            )
        model.checked.add(ref.path)
