"""`orchid profile`: measure a model's variants, and show, draw or write what was measured."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deploy.cli.models import RepositoryOption
from deploy.cli.output import JsonOption, fail

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.report import Report
    from worker.models.manifest import Manifest, Variant
    from worker.profile_file import MachineClass, ProfileFile
    from worker.profiler import ProfileSettings


def profile(
    model: Annotated[str, typer.Argument(help="Model to profile.")] = "sentiment",
    repository: RepositoryOption = None,
    variant: Annotated[
        list[str] | None, typer.Option(help="Only this variant; repeat it for several.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Three short passes: a rough profile.")
    ] = False,
    passes: Annotated[
        int, typer.Option(min=0, help="Passes over all variants, at least 3. 0: 5, quick 3.")
    ] = 0,
    threads: Annotated[int, typer.Option(min=1, help="Threads of a run, as workers have.")] = 1,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Forget what an interrupted run has measured.")
    ] = False,
    show: Annotated[
        bool, typer.Option("--show", help="Do not measure: show the profile beside the manifest.")
    ] = False,
    read: Annotated[
        Path | None,
        typer.Option(
            "--from",
            help="Do not measure: show this result of --json.",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    resolution: Annotated[
        float, typer.Option(min=0.0, help="Gain in quality that a slower variant must bring.")
    ] = 0.002,
    plot: Annotated[
        Path | None, typer.Option(help="Draw quality against cost into this PNG.")
    ] = None,
    calibrate: Annotated[
        list[Path] | None,
        typer.Option(
            help="Do not measure times: measure accuracy and confidence on this file of labelled "
            "items (`label<TAB>text`, or JSON lines with label and text or token_ids) and write "
            "them into the manifest. Repeat it for several populations.",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    json: JsonOption = None,
) -> None:
    """Measure service times of every variant through the call that serves.

    Writes a profile for this class of machine beside the manifest, which its workers then carry;
    nothing is written when an independent onnxruntime session of the same graphs takes other
    times. An interrupted run goes on. Give it an idle machine.
    """
    from bench.profile_plot import plot_profile
    from bench.report import read_report, write_report
    from deploy.cli.profile_tables import print_profile

    if calibrate:
        _calibrate(model, repository, variant or [], calibrate)
        return
    if read is not None:
        report = read_report(read)
    else:
        if 0 < passes < 3:
            fail(f"expected at least 3 passes; got {passes}", "a spread needs several passes")
        report = _report(
            model, repository, variant or [], quick, passes, threads, fresh, show, resolution
        )
    try:
        print_profile(report)
        if plot is not None:
            plot_profile(report, plot)
            typer.echo(f"written: {plot}")
    except (KeyError, ValueError) as error:
        fail(f"cannot show this result: {error}", "give the result of `orchid profile --json`")
    if json is not None:
        write_report(json, report)
        typer.echo(f"written: {json}")


def _calibrate(model: str, repository: Path | None, names: list[str], files: list[Path]) -> None:
    from deploy.cli.calibrate import calibrate_model
    from deploy.cli.models import _faults_told
    from worker.models.repository import default_repository

    with _faults_told():
        calibrate_model(repository or default_repository(), model, names, files)


def stored_report(model: str, repository: Path | None, threads: int) -> Report:
    """The report of the profile beside the manifest; ends the program when there is none."""
    return _report(model, repository, [], False, 0, threads, False, True, 0.002)


def _report(
    model: str,
    repository: Path | None,
    names: list[str],
    quick: bool,
    passes: int,
    threads: int,
    fresh: bool,
    show: bool,
    resolution: float,
) -> Report:
    from dataclasses import replace

    from bench.profile import profile_report
    from bench.report import host_facts
    from deploy.cli.models import _faults_told
    from worker.models.repository import default_repository, find_model
    from worker.profile_file import ProfileFileError, own_machine, profile_path, read_profile_file
    from worker.profiler import QUICK, ProfileSettings

    target = repository or default_repository()
    host = host_facts()
    with _faults_told():
        manifest = find_model(target, model)
        folder = target / model
        machine = own_machine(threads)
        path = profile_path(folder, machine)
        if show:
            try:
                file = read_profile_file(path)
            except ProfileFileError as error:
                fail(str(error), f"orchid profile {model} measures one")
        else:
            settings = QUICK if quick else ProfileSettings()
            settings = replace(settings, passes=passes or settings.passes)
            chosen = _chosen(manifest, names)
            file = _measure(folder, manifest, machine, settings, chosen, fresh)
            typer.echo(f"written: {path}")
    return profile_report(file, manifest, folder, resolution, host)


def _chosen(manifest: Manifest, names: Sequence[str]) -> list[Variant]:
    known = {variant.name: variant for variant in manifest.variants}
    for name in names:
        if name not in known:
            fail(f"expected a variant of {', '.join(known)}; got {name!r}")
    return [known[name] for name in names] or list(known.values())


def _measure(
    folder: Path,
    manifest: Manifest,
    machine: MachineClass,
    settings: ProfileSettings,
    chosen: Sequence[Variant],
    fresh: bool,
) -> ProfileFile:
    """Measure, and write the profile file; entries of other variants stay while they hold."""
    import time
    from datetime import UTC, datetime

    from rich.console import Console

    from bench.report import command_line, commit
    from deploy.cli.model_progress import model_progress
    from deploy.cli.profile_tables import host_of
    from worker import engine
    from worker.meter import host_times
    from worker.profile_file import SCHEMA, ProfileFile, profile_path, write_profile_file
    from worker.profiler import ProfileMeans, Profiler, kept_variants

    means = ProfileMeans(
        open_session=lambda graph: engine.Session(graph, intra_op_threads=machine.threads),
        make_token=engine.RunToken,
        now_ns=time.monotonic_ns,
        cpu_ns=time.thread_time_ns,
        process_cpu_ns=time.process_time_ns,
        host=host_times,
    )
    with model_progress(Console(stderr=True, highlight=False)) as progress:
        profiler = Profiler(folder, manifest, machine, settings, means, progress)
        if fresh:
            profiler.forget()
        measured = profiler.run(chosen)
    file = ProfileFile(
        schema=SCHEMA,
        model=manifest.name,
        machine=machine,
        host=host_of(),
        commit=commit(),
        command=command_line(),
        finished=datetime.now(UTC).isoformat(timespec="seconds"),
        variants={**kept_variants(folder, manifest, machine), **measured},
    )
    write_profile_file(profile_path(folder, machine), file)
    return file
