"""Compiled modules are taken where they are of the sources at hand, and only there."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from deploy import compiled
from deploy.compiled import SUFFIX, SWITCH, digest_of, use, why_not
from deploy.compiled.build import PACKAGES, modules_of

Install = Callable[[str], Path]


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """A package `kite` with one module."""
    folder = tmp_path / "sources" / "kite"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "tail.py").write_text("LENGTH = 3\n")
    return folder


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Puts down what a build of the given digest leaves; returns where."""
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site"), *sys.path])
    monkeypatch.setattr(compiled, "_notes", {})
    monkeypatch.delenv(SWITCH, raising=False)

    def put(digest: str) -> Path:
        folder = tmp_path / "site" / "orchid_compiled"
        folder.mkdir(parents=True)
        record = {"digest": digest, "modules": ["kite.tail"]}
        (folder / f"kite{SUFFIX}.json").write_text(json.dumps(record))
        return folder

    return put


def test_what_was_compiled_of_these_sources_is_found(sources: Path, install: Install) -> None:
    folder = install(digest_of(sources))
    use("kite", sources)
    assert why_not("kite") == ""
    spec = sys.meta_path[0].find_spec("kite.tail", None)
    assert spec is not None
    assert spec.origin == str(folder / f"kite.tail{SUFFIX}")
    assert sys.meta_path[0].find_spec("kite", None) is None


@pytest.mark.parametrize("change", ["edited", "added", "removed", "renamed"])
def test_sources_that_changed_are_what_runs(sources: Path, install: Install, change: str) -> None:
    install(digest_of(sources))
    module = sources / "tail.py"
    if change == "edited":
        module.write_text("LENGTH = 4\n")
    elif change == "added":
        (sources / "string.py").write_text("")
    elif change == "removed":
        module.unlink()
    else:
        module.rename(sources / "bow.py")
    use("kite", sources)
    assert "changed" in why_not("kite")
    assert not [f for f in sys.meta_path if f.find_spec("kite.tail", None)]


def test_the_switch_leaves_compiled_modules_alone(
    sources: Path, install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(digest_of(sources))
    monkeypatch.setenv(SWITCH, "0")
    finders = list(sys.meta_path)
    use("kite", sources)
    assert SWITCH in why_not("kite")
    assert sys.meta_path == finders


def test_nothing_compiled_is_no_fault(sources: Path, install: Install) -> None:
    finders = list(sys.meta_path)
    use("kite", sources)
    assert why_not("kite") == "not compiled"
    assert sys.meta_path == finders


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_every_listed_module_exists(package: str) -> None:
    found = {path.name for path in modules_of(package)}
    listed = {Path(pattern).name for pattern in PACKAGES[package] if "*" not in pattern}
    assert listed <= found


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_these_tests_run_what_was_compiled(package: str) -> None:
    __import__(package)
    reason = why_not(package)
    if SWITCH in reason or "changed" in reason:
        pytest.skip(reason)
    assert reason == "", "make setup compiles it"
