"""Takes compiled modules of a package instead of their sources, where the two agree.

`build.py` compiles the modules on a request's path. What it made belongs to one state of the
package: as soon as a source differs, the sources are what runs. `ORCHID_COMPILED=0` in the
environment leaves the compiled modules alone.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, ModuleSpec
from importlib.util import find_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

SWITCH = "ORCHID_COMPILED"
SUFFIX = EXTENSION_SUFFIXES[0]
# Where packages are installed, the folder of the compiled modules.
FOLDER = "orchid_compiled"
SERVICES = ("controlplane", "worker")

# Why a package runs as it does, for `orchid doctor` and tests.
_notes: dict[str, str] = {}


class _Finder:
    """Finds the compiled modules of one package before anybody finds their sources."""

    def __init__(self, extensions: Mapping[str, Path]) -> None:
        self._extensions = extensions

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        extension = self._extensions.get(fullname)
        if extension is None:
            return None
        loader = ExtensionFileLoader(fullname, str(extension))
        return spec_from_file_location(fullname, extension, loader=loader)


def use(package: str, sources: Path) -> None:
    """Let imports from `package`, whose files are in `sources`, find what was compiled of it.

    Does nothing when nothing was compiled, or it is not of these sources.
    """
    if os.environ.get(SWITCH) == "0":
        _notes[package] = f"{SWITCH}=0"
        return
    record = _record(package)
    if record is None:
        _notes[package] = "not compiled"
        return
    folder, modules, digest = record
    if digest != digest_of(sources):
        _notes[package] = "the sources have changed since they were compiled"
        return
    sys.meta_path.insert(0, _Finder({name: folder / f"{name}{SUFFIX}" for name in modules}))
    _notes[package] = ""


def use_all() -> None:
    """Let imports from the services find what was compiled of them; before their first import."""
    for package in SERVICES:
        spec = find_spec(package)
        if spec is not None and spec.origin is not None:
            use(package, Path(spec.origin).parent)


def why_not(package: str) -> str:
    """Why the sources of a package run, empty when its compiled modules do."""
    return _notes.get(package, "not imported")


def digest_of(sources: Path) -> str:
    """One hash over every Python file of a package, names included."""
    digest = hashlib.sha256()
    for path in sorted(sources.rglob("*.py")):
        digest.update(path.relative_to(sources).as_posix().encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _record(package: str) -> tuple[Path, list[str], str] | None:
    """Where the compiled modules of a package are, which those are, and of what sources."""
    for place in sys.path:
        folder = Path(place, FOLDER)
        try:
            record = json.loads((folder / f"{package}{SUFFIX}.json").read_bytes())
        except OSError:
            continue
        return folder, record["modules"], record["digest"]
    return None
