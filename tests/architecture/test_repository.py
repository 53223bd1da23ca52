"""Rules of the house that no linter knows."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GENERATED = re.compile(r"_pb2(_grpc)?\.pyi?$")
# Split so that this file does not name what it forbids.
HOSTS = re.compile(
    r"//[a-z0-9.-]*(" + "py" + r"pi\.|npm" + r"js\.|deb" + r"ian\.org)", re.IGNORECASE
)
MACHINE_PATHS = re.compile(r"(?<![\w.])/(" + "root|" + "work" + r")/[A-Za-z]")
WALL_CLOCK = re.compile(r"\btime\.time(_ns)?\(")
ROOTS = {"__main__.py", "composition.py"}
TEXT = {".py", ".cpp", ".h", ".md", ".sh", ".toml", ".yaml", ".yml", ".cmake", ".proto", ".json"}
MOST_LINES = 500


def tracked_files() -> list[Path]:
    """Files under version control, or every file when this is not a checkout."""
    listing = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    names = listing.stdout.split("\0") if listing.returncode == 0 else []
    paths = [ROOT / name for name in names if name]
    return [path for path in paths if path.is_file() and path.suffix in TEXT]


def offending(pattern: re.Pattern[str], files: list[Path]) -> list[str]:
    """Places where `pattern` occurs, as file:line."""
    return [
        f"{path.relative_to(ROOT)}:{number}"
        for path in files
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if pattern.search(line)
    ]


def test_no_registry_host_is_named() -> None:
    assert offending(HOSTS, tracked_files()) == []


def test_no_path_of_one_machine_is_named() -> None:
    assert offending(MACHINE_PATHS, tracked_files()) == []


@pytest.mark.parametrize("package", ["controlplane", "worker", "deploy", "bench"])
def test_durations_come_from_a_monotonic_clock(package: str) -> None:
    files = [path for path in tracked_files() if path.is_relative_to(ROOT / package)]
    # Clocks are made in composition roots only; there the wall clock dates spans and statistics.
    sources = [p for p in files if p.suffix == ".py" and p.name not in ROOTS]
    assert offending(WALL_CLOCK, sources) == []


def test_files_stay_small() -> None:
    sources = [
        path
        for path in tracked_files()
        if path.suffix in {".py", ".cpp", ".h"} and not GENERATED.search(path.name)
    ]
    long = {
        str(path.relative_to(ROOT)): count
        for path in sources
        if (count := len(path.read_text(encoding="utf-8").splitlines())) > MOST_LINES
    }
    assert long == {}


@pytest.mark.parametrize("folder", ["controlplane/policy"])
def test_policy_imports_only_pure_modules(folder: str) -> None:
    allowed = {
        "__future__", "bisect", "collections", "dataclasses", "enum", "heapq", "itertools",
        "math", "typing", "controlplane", "numpy",
    }  # fmt: skip
    imports = re.compile(r"^\s*(?:from|import)\s+([A-Za-z_][\w]*)", re.MULTILINE)
    for path in (ROOT / folder).glob("*.py"):
        found = set(imports.findall(path.read_text(encoding="utf-8")))
        assert found <= allowed, f"{path.name}: {sorted(found - allowed)}"
