"""What could keep this machine from serving, each finding with its remedy."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from deploy import compiled
from worker.cpu_plan import CpuPlan, read_cpu_plan

if TYPE_CHECKING:
    from worker.models.manifest import Manifest


class Level(Enum):
    """FAULT keeps Orchid from serving; NOTE is worth knowing."""

    OK = "ok"
    NOTE = "note"
    FAULT = "fault"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    name: str
    level: Level
    detail: str
    remedy: str = ""

    def as_json(self) -> dict[str, str]:
        """The finding as JSON values."""
        return {
            "name": self.name,
            "level": self.level.value,
            "detail": self.detail,
            "remedy": self.remedy,
        }


def examine(repository: Path, *, verify: bool = False) -> list[Finding]:
    """Looks at the engine, the CPU plan and the models; `verify` also hashes every file."""
    return [*_engine(), *_compiled(), *_cpu(read_cpu_plan()), *_models(repository, verify)]


def _engine() -> Iterator[Finding]:
    yield Finding("python", Level.OK, f"{platform.python_version()} on {platform.platform()}")
    try:
        from worker.engine import runtime_info
        from worker.errors import WorkerError
    except ImportError as error:
        yield Finding(
            "engine",
            Level.FAULT,
            f"the compiled extension cannot be imported: {error}",
            "make setup (or pip install --editable .) compiles it",
        )
        return
    try:
        info = runtime_info()
    except (WorkerError, OSError) as error:
        yield Finding(
            "onnxruntime",
            Level.FAULT,
            str(error),
            "pip install --force-reinstall onnxruntime, then make setup",
        )
        return
    yield Finding("onnxruntime", Level.OK, f"{info.library_version}, {info.library_path}")
    yield Finding("api", Level.OK, f"headers of version {info.header_api_version}")
    portable = info.simd == "portable"
    yield Finding(
        "simd",
        Level.NOTE if portable else Level.OK,
        f"{info.simd} ({info.cpu_model})",
        "no AVX2 here: the portable kernels serve, slower" if portable else "",
    )


def _compiled() -> Iterator[Finding]:
    for package in ("controlplane", "worker"):
        reason = compiled.why_not(package)
        yield Finding(
            package,
            Level.NOTE if reason else Level.OK,
            f"interpreted: {reason}" if reason else "compiled",
            "make setup compiles it; until then requests cost more CPU time" if reason else "",
        )


def _cpu(plan: CpuPlan) -> Iterator[Finding]:
    quota = "none" if plan.quota is None else f"{plan.quota:g} cores"
    yield Finding(
        "cpu plan",
        Level.OK,
        f"{plan.cores} single-threaded worker(s): {plan.granted:g} cores granted by {plan.binding} "
        f"(visible {plan.visible}, affinity {plan.affinity}, quota {quota})",
    )
    if plan.throttled_periods:
        yield Finding(
            "throttling",
            Level.NOTE,
            f"the quota held this control group back in {plan.throttled_periods} periods so far",
            "start fewer workers or raise the quota if it goes on while serving",
        )


def _models(repository: Path, verify: bool) -> Iterator[Finding]:
    from worker.models.errors import ModelError
    from worker.models.manifest import load_manifest
    from worker.models.manifest import verify as verify_model

    folders = sorted(path.parent for path in repository.glob("*/manifest.json"))
    if not folders:
        yield Finding(
            "models",
            Level.NOTE,
            f"none in {repository}",
            "orchid models build (or --small, or --language-model) makes one",
        )
    for folder in folders:
        name = f"model {folder.name}"
        remedy = f"orchid models build, or remove {folder}"
        try:
            manifest = load_manifest(folder)
            faults = verify_model(folder) if verify else list(_sizes(folder, manifest))
        except (ModelError, OSError) as error:
            yield Finding(name, Level.FAULT, str(error), remedy)
            continue
        if faults:
            yield Finding(name, Level.FAULT, "; ".join(str(fault) for fault in faults), remedy)
            continue
        variants = ", ".join(variant.name for variant in manifest.variants)
        checked = "files hashed" if verify else "files present"
        yield Finding(
            name,
            Level.OK,
            f"version {manifest.version}: {variants}; {checked}; {manifest.digest[:19]}",
        )


def _sizes(folder: Path, manifest: Manifest) -> Iterator[str]:
    for file, ref in manifest.files.items():
        path = folder / file
        if not path.is_file():
            yield f"{file} is missing"
        elif path.stat().st_size != ref.size:
            yield f"{file} has {path.stat().st_size} bytes, expected {ref.size}"
