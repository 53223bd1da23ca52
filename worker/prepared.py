"""Graphs prepared for this host: optimised, and with weights in the layout its kernels multiply.

ONNX Runtime maps external weights, but on loading copies matrices into its kernels' own layout,
privately in every process. A prepared graph has that layout on disk, so that all processes of a
host map one copy. It suits one CPU class and one ONNX Runtime version only and is therefore a
cache, beside the model and never part of it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from worker.models.external_data import confined

GRAPH_NAME = "graph.onnx"
WEIGHTS_NAME = "weights.bin"
_SOURCE_NAME = "source"
# Weights, their packed copies, and room to spare.
_SPACE_FACTOR = 2.5


@dataclass(frozen=True, slots=True)
class Prepared:
    """The graph to load: `prepared`, or the source as it is.

    `note` says what went wrong; it is empty for a source without external weights.
    """

    graph: Path
    prepared: bool
    note: str


def default_cache() -> Path:
    """`$XDG_CACHE_HOME/orchid/prepared`, or below `~/.cache`."""
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "orchid" / "prepared"


def prepared_graph(
    source: Path, *, cache: Path, host: str, build: Callable[[Path, Path], None]
) -> Prepared:
    """Find or make the prepared form of `source`.

    `host` names everything that makes a prepared graph fit (CPU class, library version);
    `build(source, folder)` writes `GRAPH_NAME` and `WEIGHTS_NAME`. One process builds, others
    wait for it. A cache that cannot be written, or that others could have written, is a note,
    not an error; what `build` raises passes through, and ModelLoadError for weights outside the
    graph's folder.
    """
    data = source.read_bytes()
    weights = [source.parent / name for name in confined(source, data)]
    if not weights:
        return Prepared(source, False, "")
    try:
        entry = cache / _key(data, weights, host)
        if not (entry / GRAPH_NAME).is_file():
            cache.mkdir(parents=True, exist_ok=True)
            needed = int(_SPACE_FACTOR * sum(file.stat().st_size for file in weights))
            free = shutil.disk_usage(cache).free
            if free < needed:
                note = f"{cache} has {free >> 20} MiB free, {needed >> 20} MiB are needed"
                return Prepared(source, False, note)
            with _locked(cache / f"{entry.name}.lock"):
                if not (entry / GRAPH_NAME).is_file():
                    _make(source, entry, build)
                    _drop_others(source, entry)
        if others := _others(entry):
            return Prepared(source, False, f"{entry} is not taken: {others}")
    except OSError as error:
        return Prepared(source, False, f"cannot prepare in {cache}: {error}")
    return Prepared(entry / GRAPH_NAME, True, "")


def _others(entry: Path) -> str:
    """Why others could have put there what lies in an entry, empty when they could not.

    Nothing else vouches for a prepared graph, while its source is checked against its manifest.
    """
    status = entry.stat()
    if status.st_uid != os.geteuid():
        return f"it belongs to user {status.st_uid}"
    return "others may write there" if status.st_mode & 0o022 else ""


def discard(prepared: Prepared) -> None:
    """Forget a prepared graph that turned out not to load."""
    if prepared.prepared:
        shutil.rmtree(prepared.graph.parent, ignore_errors=True)


def _key(graph: bytes, weights: list[Path], host: str) -> str:
    digest = hashlib.sha256(host.encode() + b"\0" + graph)
    for file in weights:
        status = file.stat()
        digest.update(f"\0{file.name}\0{status.st_size}\0{status.st_mtime_ns}".encode())
    return digest.hexdigest()[:32]


def _make(source: Path, entry: Path, build: Callable[[Path, Path], None]) -> None:
    folder = entry.with_name(f"{entry.name}.{os.getpid()}.part")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700)
    try:
        build(source, folder)
        (folder / _SOURCE_NAME).write_text(str(source.resolve()))
        folder.rename(entry)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def source_of(entry: Path) -> Path | None:
    """The graph that a folder of the cache was prepared from; None for any other folder."""
    try:
        return Path((entry / _SOURCE_NAME).read_text())
    except OSError:
        return None


def _drop_others(source: Path, entry: Path) -> None:
    """Remove what was prepared from earlier contents of the same file, or from files now gone."""
    own = source.resolve()
    for marker in entry.parent.glob(f"*/{_SOURCE_NAME}"):
        prepared_from = source_of(marker.parent)
        # Another process may have removed it meanwhile.
        if marker.parent == entry or prepared_from is None:
            continue
        if prepared_from == own or not prepared_from.exists():
            shutil.rmtree(marker.parent, ignore_errors=True)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
