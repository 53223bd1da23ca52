"""The one shape of every bench result: where, what, how, all points, and a flat summary.

`summary` maps a name to one number, so that a result can be compared with another
run (or a bar) without knowing the bench; `points` keeps everything a plot needs.
"""

from __future__ import annotations

import json
import math
import numbers
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from worker.cpu_plan import read_cpu_plan

SCHEMA = 1
_PACKAGES = ("onnxruntime", "grpcio", "numpy", "protobuf", "tokenizers", "uvloop")


@dataclass(frozen=True, slots=True)
class HostFacts:
    """The machine a result was measured on.

    `cores` is what the kernel shows, `cores_granted` what quota, cpuset and affinity
    leave to this process; `load_1m` is the load average when the facts were taken.
    """

    cpu_model: str
    cores: int
    cores_granted: float
    memory_mib: int
    kernel: str
    python: str
    packages: Mapping[str, str]
    load_1m: float


@dataclass(frozen=True, slots=True)
class Report:
    """One bench run, as written to JSON.

    `points` are JSON objects, one for each measured setting; `settings` is what the
    run was asked to do.
    """

    bench: str
    host: HostFacts
    commit: str
    command: str
    started: str
    settings: Mapping[str, Any]
    points: Sequence[Mapping[str, Any]]
    summary: Mapping[str, float]
    schema: int = field(default=SCHEMA)


def host_facts() -> HostFacts:
    """Reads the facts of this machine; packages that are not installed are left out."""
    packages = {}
    for name in _PACKAGES:
        try:
            packages[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return HostFacts(
        cpu_model=_cpu_model(),
        cores=os.cpu_count() or 1,
        cores_granted=read_cpu_plan().granted,
        memory_mib=psutil.virtual_memory().total >> 20,
        kernel=platform.release(),
        python=platform.python_version(),
        packages=packages,
        load_1m=os.getloadavg()[0],
    )


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def commit() -> str:
    """The checked-out commit, with "-dirty" when tracked files differ; "" outside git."""
    root = Path(__file__).resolve().parent.parent
    try:
        head = _git(root, "rev-parse", "HEAD")
        changed = _git(root, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.CalledProcessError):
        return ""
    return head + ("-dirty" if changed else "")


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(root), *arguments], check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def command_line(argv: Sequence[str] | None = None) -> str:
    """How this process was started, with the program reduced to its name."""
    given = list(sys.argv if argv is None else argv)
    if not given:
        return ""
    name = Path(given[0]).name
    # `python -m deploy.cli` is the same command.
    return shlex.join(["orchid" if name == "__main__.py" else name, *given[1:]])


def make_report(
    bench: str,
    *,
    points: Sequence[Mapping[str, Any]],
    summary: Mapping[str, float],
    settings: Mapping[str, Any] | None = None,
    host: HostFacts | None = None,
) -> Report:
    """Puts a finished run together; take `host` before the run so that its load is not the run's.

    Raises ValueError when a summary value is not a finite number.
    """
    for name, value in summary.items():
        if not isinstance(value, numbers.Real) or not math.isfinite(value):
            raise ValueError(f"summary[{name!r}] is {value!r}, expected a finite number")
    return Report(
        bench=bench,
        host=host or host_facts(),
        commit=commit(),
        command=command_line(),
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        settings=dict(settings or {}),
        points=list(points),
        summary=dict(summary),
    )


def write_report(path: Path, report: Report) -> None:
    """Writes the report as JSON, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(asdict(report), indent=1, allow_nan=False) + "\n")
    partial.replace(path)


def read_report(path: Path) -> Report:
    """Reads what `write_report` wrote; raises ValueError for anything else."""
    try:
        data = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path} is no result of a bench: {error}") from None
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        schema = data.get("schema") if isinstance(data, dict) else None
        raise ValueError(f"{path} is no result of a bench: schema {schema!r}, expected {SCHEMA}")
    try:
        return Report(**{**data, "host": HostFacts(**data["host"])})
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path} is no result of a bench: {error}") from None
