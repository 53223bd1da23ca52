"""What `orchid models build` builds, with progress on a console and the outcome as tables."""

from __future__ import annotations

import time
from pathlib import Path

from rich.console import Console

from deploy.cli.model_evaluate import evaluate_built
from deploy.cli.model_progress import model_progress
from deploy.cli.model_tables import build_table, show_tables
from worker.models.build import SentimentBuilder
from worker.models.generator import GeneratorReport, build_local
from worker.models.local import CheckpointOptions, build_checkpoint
from worker.models.manifest import Manifest
from worker.models.packages import PackageCache, cache_folder
from worker.models.smollm2 import build_smollm2


def build_default(target: Path, small: bool, console: Console) -> None:
    """Build the sentiment model, or its small variants only, into the repository ``target``."""
    with model_progress(console) as progress:
        packages = PackageCache(cache_folder(), progress)
        builder = SentimentBuilder(target, packages, progress, time.thread_time_ns)
        report = builder.build(small=small)
    console.print(build_table(report))


def build_folder(source: Path, target: Path, options: CheckpointOptions, console: Console) -> None:
    """Build an encoder's checkpoint folder."""
    with model_progress(console) as progress:
        manifest = build_checkpoint(source, target, options, progress)
    _show(manifest, console)


def build_language_model(target: Path, evidence: bool, console: Console) -> None:
    """Build the default language model into the repository ``target``.

    With ``evidence`` its quality is measured too, unless it has been.
    """
    with model_progress(console) as progress:
        report = build_smollm2(target, PackageCache(cache_folder(), progress), progress)
        manifest = report.manifest
        if evidence:
            manifest = evaluate_built(report.folder, manifest, progress)
    _show_built(report, manifest, console)


def build_decoder(source: Path, target: Path, name: str, int8: bool, console: Console) -> None:
    """Build a GGUF file or a decoder's checkpoint folder.

    It is called ``name``, by default as the file or folder is.
    """
    chosen = name or (source.stem if source.is_file() else source.resolve().name)
    with model_progress(console) as progress:
        report = build_local(source, target, chosen, int8=int8, progress=progress)
    _show_built(report, report.manifest, console)


def _show_built(report: GeneratorReport, manifest: Manifest, console: Console) -> None:
    """A language model as it is now, and what of it the build had to make."""
    _show(manifest, console)
    console.print(f"made: {', '.join(report.made) or 'nothing'}", highlight=False)
    _tell_unmeasured(manifest, console)


def _tell_unmeasured(manifest: Manifest, console: Console) -> None:
    """How a language model gets the measured quality that a floor asks for."""
    if all(variant.quality for variant in manifest.variants):
        return
    console.print(
        f"[yellow]note[/] quality is not measured: generations with a minimum_quality are refused "
        f"until `orchid models evaluate {manifest.name}` has run (some minutes)",
        highlight=False,
        soft_wrap=True,
    )


def _show(manifest: Manifest, console: Console) -> None:
    for part in show_tables(manifest):
        console.print(part)
