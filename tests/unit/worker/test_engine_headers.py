"""The build's search for ONNX Runtime's headers; its network steps are for the build itself."""

from __future__ import annotations

import hashlib
import importlib
import io
import sys
import tarfile
from pathlib import Path
from types import ModuleType

import pytest

SCRIPTS = Path(__file__).parents[3] / "cpp" / "cmake"


@pytest.fixture(scope="module")
def scripts() -> tuple[ModuleType, ModuleType]:
    sys.path.insert(0, str(SCRIPTS))
    try:
        return importlib.import_module("apt_sources"), importlib.import_module("ort_headers")
    finally:
        sys.path.remove(str(SCRIPTS))


def test_one_line_sources(scripts: tuple[ModuleType, ModuleType]) -> None:
    apt, _ = scripts
    archives = apt.parse_list(
        "# deb http://commented/ x main\n"
        "deb [arch=amd64 signed-by=/keys/a.gpg] http://mirror.test/debian bookworm main contrib\n"
        "deb-src http://mirror.test/debian bookworm main\n"
        "deb http://mirror.test/plain stable main # trailing words\n"
    )
    assert [(a.uri, a.suites, a.components, a.options) for a in archives] == [
        (
            "http://mirror.test/debian",
            ("bookworm",),
            ("main", "contrib"),
            (("Signed-By", "/keys/a.gpg"),),
        ),
        ("http://mirror.test/plain", ("stable",), ("main",), ()),
    ]


def test_deb822_sources(scripts: tuple[ModuleType, ModuleType]) -> None:
    apt, _ = scripts
    archives = apt.parse_deb822(
        "Types: deb deb-src\n"
        "# a comment between fields\n"
        "URIs: http://one.test/debian http://two.test/debian\n"
        "Suites: bookworm bookworm-updates\n"
        "Components: main\n"
        "Signed-By:\n"
        " -----BEGIN PGP PUBLIC KEY BLOCK-----\n"
        " .\n"
        " abc\n"
        "\n"
        "Types: deb\nURIs: http://off.test\nSuites: x\nComponents: main\nEnabled: no\n"
        "\n"
        "Types: deb-src\nURIs: http://source.test\nSuites: x\nComponents: main\n"
    )
    assert [a.uri for a in archives] == ["http://one.test/debian", "http://two.test/debian"]
    assert archives[0].suites == ("bookworm", "bookworm-updates")
    written = apt.stanza(archives[0], "trixie")
    assert "Suites: trixie\n" in written
    assert written.endswith("Signed-By: \n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n abc\n")
    assert apt.parse_deb822(written)[0].options == archives[0].options


def test_a_cached_place_is_used_without_asking_anyone(
    scripts: tuple[ModuleType, ModuleType],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    _, headers = scripts
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    place = headers.cache_dir() / f"debian-{headers.SUITE}"
    place.mkdir(parents=True)
    (place / headers.MARK).write_text("")
    monkeypatch.setattr(headers, "from_release", None)
    monkeypatch.setattr(headers, "from_distribution", None)
    assert headers.main() == 0
    assert capsys.readouterr().out == f"{place}\n"


def test_every_failed_place_says_why(
    scripts: tuple[ModuleType, ModuleType],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    _, headers = scripts
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(headers, "RELEASES", (tmp_path / "nowhere").as_uri())
    monkeypatch.setattr(headers.shutil, "which", lambda _: None)
    assert headers.main() == 1
    said = capsys.readouterr().err
    assert "release archive: the release archive cannot be fetched" in said
    assert "distribution package: this system has no apt-get" in said
    assert list(headers.cache_dir().iterdir()) == []


def test_an_archive_with_another_hash_is_refused_and_removed(
    scripts: tuple[ModuleType, ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, headers = scripts
    monkeypatch.setattr(headers.platform, "machine", lambda: "x86_64")
    name = f"onnxruntime-linux-x64-{headers.VERSION}.tgz"
    served = tmp_path / "served" / f"v{headers.VERSION}"
    served.mkdir(parents=True)
    (served / name).write_bytes(b"something else")
    monkeypatch.setattr(headers, "RELEASES", served.parent.as_uri())
    target = tmp_path / "target"
    target.mkdir()
    with pytest.raises(headers.UnavailableError, match="expected"):
        headers.from_release(target)
    assert not (tmp_path / name).exists()


def test_the_release_archive_gives_its_headers_and_nothing_else(
    scripts: tuple[ModuleType, ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, headers = scripts
    monkeypatch.setattr(headers.platform, "machine", lambda: "x86_64")
    top = f"onnxruntime-linux-x64-{headers.VERSION}"
    served = tmp_path / "served" / f"v{headers.VERSION}"
    served.mkdir(parents=True)
    with tarfile.open(served / f"{top}.tgz", "w:gz") as tar:
        for name in (f"include/{headers.MARK}", "include/core/deep.h", "lib/lib.so", "lib/x.h"):
            info = tarfile.TarInfo(f"{top}/{name}")
            info.size = len(name)
            tar.addfile(info, io.BytesIO(name.encode()))
    archive = (served / f"{top}.tgz").read_bytes()
    monkeypatch.setitem(headers.SHA256, "x64", hashlib.sha256(archive).hexdigest())
    monkeypatch.setattr(headers, "RELEASES", served.parent.as_uri())
    target = headers.cached_or_made(tmp_path / "cache" / "release", headers.from_release)
    assert sorted(path.name for path in target.iterdir()) == ["deep.h", headers.MARK]
    assert list(target.parent.iterdir()) == [target]
