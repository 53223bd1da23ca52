"""Get ONNX Runtime's C and C++ headers into the cache and print their directory.

Two places are tried: the project's release archive (checked against a pinned hash), then the
distribution's libonnxruntime-dev, fetched by apt with private state and unpacked without root.
Exit status 1 with a reason for each place when both fail.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import apt_sources

VERSION = "1.21.0"
RELEASES = os.environ.get(
    "ORCHID_ORT_RELEASES", "https://github.com/microsoft/onnxruntime/releases/download"
)
SHA256 = {
    "x64": "7485c7e7aac6501b27e353dcbe068e45c61ab51fbaf598d13970dfae669d20bf",
    "aarch64": "4508084bde1232ee1ab4b6fad2155be0ea2ccab1c1aae9910ddb3fb68a60805e",
}
# The oldest Debian suite that has the package; its headers suit any newer library.
SUITE = "trixie"
PACKAGE = "libonnxruntime-dev"
MARK = "onnxruntime_cxx_api.h"
CONNECT_SECONDS = 5


class UnavailableError(Exception):
    """One place has no headers, and why."""


def cache_dir() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(root) / "orchid" / "onnxruntime-headers"


def from_release(target: Path) -> None:
    """Download the release archive, resuming an earlier try, and keep its headers in `target`."""
    arch = {"x86_64": "x64", "amd64": "x64", "aarch64": "aarch64", "arm64": "aarch64"}.get(
        platform.machine().lower()
    )
    if arch is None:
        raise UnavailableError(f"no release archive is known for {platform.machine()}")
    name = f"onnxruntime-linux-{arch}-{VERSION}.tgz"
    archive = target.with_name(name)
    try:
        download(f"{RELEASES}/v{VERSION}/{name}", archive)
    except (OSError, urllib.error.URLError) as error:
        raise UnavailableError(f"the release archive cannot be fetched: {error}") from error
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    if digest != SHA256[arch]:
        archive.unlink()
        raise UnavailableError(f"{name} has sha256 {digest}, expected {SHA256[arch]}; removed it")
    with tarfile.open(archive) as tar:
        for member in tar.getmembers():
            path = Path(member.name)
            content = tar.extractfile(member) if member.isfile() else None
            if content is not None and path.suffix == ".h" and "include" in path.parts:
                (target / path.name).write_bytes(content.read())
    archive.unlink()


def download(url: str, path: Path) -> None:
    """Fetch `url` into `path`, continuing a partial file of an interrupted try."""
    part = path.with_name(path.name + ".part")
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        with (
            urllib.request.urlopen(request, timeout=CONNECT_SECONDS) as response,
            part.open("ab" if response.status == 206 else "wb") as file,
        ):
            shutil.copyfileobj(response, file)
    except urllib.error.HTTPError as error:
        if error.code != 416:  # nothing left to fetch
            raise
    part.replace(path)


def from_distribution(target: Path) -> None:
    """Take the headers out of the distribution's package, without root and without installing."""
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise UnavailableError("this system has no apt-get and dpkg-deb")
    archives = [a for a in apt_sources.configured() if "main" in a.components and usable(a)]
    if not archives:
        raise UnavailableError("apt is configured for no Debian archive with the component main")
    reasons = []
    for archive in archives:
        with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
            try:
                fetch_package(archive, Path(scratch))
            except subprocess.CalledProcessError as error:
                reasons.append(f"{archive.uri}: {(error.stderr or error.stdout).strip()[-400:]}")
                continue
            for header in Path(scratch).glob("unpacked/usr/include/onnxruntime/*.h"):
                shutil.copy(header, target)
            return
    raise UnavailableError(f"{PACKAGE} of {SUITE} cannot be fetched from " + "; ".join(reasons))


def usable(archive: apt_sources.Archive) -> bool:
    """Whether it is the main archive of the running release, not its updates or a third party."""
    release = platform.freedesktop_os_release()
    names = {release.get("VERSION_CODENAME", ""), "stable", "testing", "unstable", "sid"}
    return release.get("ID") == "debian" and bool(names & set(archive.suites))


def fetch_package(archive: apt_sources.Archive, scratch: Path) -> None:
    for folder in ("parts", "state/lists/partial", "cache/archives/partial"):
        (scratch / folder).mkdir(parents=True)
    (scratch / "parts" / "newer.sources").write_text(apt_sources.stanza(archive, SUITE))
    options = {
        "Dir::Etc::SourceList": "/dev/null",
        "Dir::Etc::SourceParts": str(scratch / "parts"),
        "Dir::State": str(scratch / "state"),
        "Dir::State::status": "/var/lib/dpkg/status",
        "Dir::Cache": str(scratch / "cache"),
        "Debug::NoLocking": "1",
        "APT::Sandbox::User": "root" if os.geteuid() == 0 else "",
        "APT::Update::Error-Mode": "any",
        "Acquire::Languages": "none",
        "Acquire::Retries": "2",
        "Acquire::http::Timeout": "20",
    }
    apt = ["apt-get", "-qq", *(f"-o{key}={value}" for key, value in options.items())]
    for command in (
        [*apt, "update"],
        [*apt, "download", PACKAGE],
    ):
        subprocess.run(command, cwd=scratch, check=True, capture_output=True, text=True)
    package = next(scratch.glob(f"{PACKAGE}_*.deb"))
    subprocess.run(
        ["dpkg-deb", "-x", str(package), str(scratch / "unpacked")],
        check=True, capture_output=True, text=True,
    )  # fmt: skip


def cached_or_made(target: Path, make: Callable[[Path], None]) -> Path:
    """`target`, made in a scratch folder and moved into place whole, so builds may race."""
    if (target / MARK).exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=target.name + ".", dir=target.parent))
    try:
        make(scratch)
        if not (scratch / MARK).exists():
            raise UnavailableError(f"what was fetched holds no {MARK}")
        if not (target / MARK).exists():
            scratch.rename(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return target


def main() -> int:
    places: list[tuple[str, Path, Callable[[Path], None]]] = [
        ("release archive", cache_dir() / f"release-{VERSION}", from_release),
        ("distribution package", cache_dir() / f"debian-{SUITE}", from_distribution),
    ]
    for _, target, _ in places:
        if (target / MARK).exists():
            sys.stdout.write(f"{target}\n")
            return 0
    for name, target, make in places:
        try:
            sys.stdout.write(f"{cached_or_made(target, make)}\n")
        except UnavailableError as reason:
            sys.stderr.write(f"{name}: {reason}\n")
        else:
            return 0
    return 1


if __name__ == "__main__":
    sys.exit(main())
