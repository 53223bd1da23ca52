"""`orchid bench operate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deploy.cli.bench_options import (
    DeadlineFactorOption,
    FreshOption,
    ModelOption,
    RepositoryOption,
    WarmupOption,
    WorkersOption,
)
from deploy.cli.output import fail
from deploy.cli.results import names

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from bench.operate import Kept, OperateSettings


def operate(
    events: Annotated[
        list[str] | None, typer.Argument(help="kill, drain, roll, rotate. Default: each of them.")
    ] = None,
    load: Annotated[
        float, typer.Option(min=0.05, help="Times the most accurate variant's capacity.")
    ] = 0.7,
    seconds: Annotated[float, typer.Option(min=2.0, help="Measured time of a run.")] = 30.0,
    warmup: WarmupOption = 2.0,
    deadline_factor: DeadlineFactorOption = 3.0,
    workers: WorkersOption = None,
    model: ModelOption = "sentiment",
    variants: Annotated[str, typer.Option(help="Variants to load, by comma. Default: all.")] = "",
    repository: RepositoryOption = Path("models"),
    seed: Annotated[int, typer.Option(help="Seed of arrivals and texts.")] = 1,
    fresh: FreshOption = False,
    json: Annotated[Path, typer.Option("--json", help="Result; events that it has are kept.")] = (
        Path("operate-results/operate.json")
    ),
) -> None:
    """Kill, drain and replace workers under load, and follow every request to its end.

    kill: SIGKILL to one worker, which is started again. drain: one worker finishes what it has and
    goes, and is started again. roll: every worker is replaced, as by `orchid roll`. rotate: the
    same with mutual TLS, and the certificate is exchanged first. Exits with 1 when a request is
    lost.
    """
    from bench.operate import EVENTS, Kept, OperateSettings
    from bench.report import host_facts
    from worker.cpu_plan import read_cpu_plan

    unknown = sorted(set(events or ()) - EVENTS.keys())
    if unknown:
        fail(f"there is no event {', '.join(unknown)}", f"events: {', '.join(EVENTS)}")
    settings = OperateSettings(
        model=model,
        workers=workers or read_cpu_plan().cores,
        load=load,
        seconds=seconds,
        warmup_s=warmup,
        deadline_factor=deadline_factor,
        variants=tuple(names(variants)),
        seed=seed,
    )
    if settings.workers < 2:
        fail("one of one worker cannot go while the others answer", "--workers 2")
    kept = Kept(host_facts()) if fresh else _kept(json, settings)
    have = {point["event"] for point in kept.points}
    wanted = [event for event in EVENTS if event in (events or EVENTS) and event not in have]
    if wanted:
        kept = _measure(settings, kept, wanted, json, repository)
    _show(settings, kept)
    typer.echo(f"written: {json}")
    if any(point["lost"] for point in kept.points):
        raise typer.Exit(1)


def _kept(path: Path, settings: OperateSettings) -> Kept:
    from bench.operate import StoredOtherwiseError, read_kept

    try:
        return read_kept(path, settings)
    except (StoredOtherwiseError, ValueError, KeyError, TypeError) as error:
        fail(str(error), "--fresh measures all anew, or --json names another file")


def _measure(
    settings: OperateSettings, kept: Kept, events: Sequence[str], path: Path, repository: Path
) -> Kept:
    """Does one event after the other; the file is written after each."""
    from bench.operate import ROTATE
    from bench.secured import secured
    from deploy.cli.bench_sweep import measuring

    plain = [event for event in events if event != ROTATE]
    with measuring():
        if plain:
            kept = _on_cluster(settings, kept, plain, path, repository, None)
        if len(plain) < len(events):
            with secured(path.parent / "certificates") as config:
                kept = _on_cluster(settings, kept, [ROTATE], path, repository, config)
    return kept


def _on_cluster(
    settings: OperateSettings,
    kept: Kept,
    events: Sequence[str],
    path: Path,
    repository: Path,
    config: Path | None,
) -> Kept:
    from rich.console import Console

    from bench.operate import operate_report, run_operate, seconds_left
    from bench.report import write_report
    from deploy.cli.bench_sweep import open_workload
    from deploy.cli.progress import bench_progress
    from deploy.cluster import ClusterSpec, LocalCluster

    console = Console()
    workload = open_workload(repository, settings.model)
    spec = ClusterSpec(
        workers=settings.workers,
        directory=path.parent / "cluster",
        config=config,
        listen="127.0.0.1:0",
        repository=repository,
        models=(settings.model,),
        worker={"variants": settings.variants},
        supervise=True,
    )
    with (
        bench_progress(console, seconds_left(settings, kept, events)) as (notify, on_start),
        LocalCluster(spec) as cluster,
    ):
        cluster.wait_ready(timeout_s=600.0, on_progress=on_start)
        for event in events:
            kept = run_operate(cluster, settings, workload, kept, event, notify)
            write_report(path, operate_report(settings, kept))
    return kept


def _show(settings: OperateSettings, kept: Kept) -> None:
    from rich.console import Console

    assert kept.baseline is not None
    console = Console()
    console.print(
        f"{settings.workers} workers at {settings.load:g} of {kept.baseline.capacity_per_s:.1f}/s, "
        f"deadline {kept.baseline.deadline_ms:.0f} ms; shares on time in % of the offered, "
        "lowest of any second.",
        highlight=False,
    )
    _table(console, kept)


def _table(console: Console, kept: Kept) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold dim", padding=(0, 1, 0, 0))
    table.add_column("event", no_wrap=True)
    headings = ("offered", "lost", "late", "refused", "on time", "before", "during", "lowest")
    for heading in (*headings, "on time again", "whole again"):
        table.add_column(heading, justify="right")
    for point in kept.points:
        shares = [
            point[name]
            for name in ("on_time", "on_time_before", "on_time_during", "on_time_lowest")
        ]
        back = point["on_time_recovery_s"]
        table.add_row(
            point["event"],
            *(str(point[name]) for name in ("offered", "lost", "late")),
            str(point["refused"] + point["shed"]),
            *(f"{100 * share:.1f}" for share in shares),
            "not seen" if back is None else f"{back:.1f} s",
            f"{point['whole_s']:.1f} s" + ("" if point["within_run"] else ", after the run"),
        )
    console.print(table, highlight=False)
