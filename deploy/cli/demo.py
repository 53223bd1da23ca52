"""`orchid demo`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deploy.cli.output import fail

if TYPE_CHECKING:
    from rich.console import Console

    from bench.demo import DemoRun


def demo(
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Worker processes. Default: the cores the CPU plan grants."),
    ] = None,
    seconds: Annotated[float, typer.Option(min=1.0, help="Length of each measured run.")] = 10.0,
    model: Annotated[str, typer.Option(help="Model to play.")] = "sentiment",
    repository: Annotated[
        Path | None,
        typer.Option(help="Model repository. Default: $ORCHID_REPOSITORY, else ./models."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Directory for the table's JSON and PNG.")] = Path(
        "demo-results"
    ),
    seed: Annotated[int, typer.Option(help="Seed of the arrivals.")] = 1,
) -> None:
    """Play real traffic against Orchid's policy and two honest simple ones.

    Starts a control plane and workers, measures what the most accurate variant can do
    through the full path, then sends Poisson traffic at 0.4, 0.8, 1.2 and 2 times that,
    for each policy. Prints a table and writes it as JSON and PNG. At the end a language
    model of the repository, if there is one, streams an answer.
    """
    from rich.console import Console

    from bench.demo import LOAD_FACTORS, POLICIES, demo_spec, run_demo
    from bench.load.processes import DriverError
    from bench.plots import plot_sweep
    from bench.report import write_report
    from bench.sweep import SweepSettings, sweep_seconds
    from bench.workloads import WorkloadError, workload_for
    from deploy.cli.demo_generation import stream_one
    from deploy.cli.progress import bench_progress
    from deploy.cluster import ClusterError
    from deploy.fleet import FleetError
    from deploy.generation import GenerationError
    from deploy.state import AlreadyRunningError
    from worker.cpu_plan import read_cpu_plan

    root = repository or Path(os.environ.get("ORCHID_REPOSITORY", "models"))
    console = Console()
    settings = SweepSettings(
        model=model, policies=POLICIES, load_factors=LOAD_FACTORS, seconds=seconds, seed=seed
    )
    try:
        workload = workload_for(root, model)
        cores = read_cpu_plan().cores
        spec = demo_spec(out / "cluster", workers or cores, root, model)
        with bench_progress(console, sweep_seconds(settings)) as (notify, on_start):
            run = run_demo(spec, settings, workload, notify=notify, on_start=on_start)
    except WorkloadError as error:
        fail(str(error), error.remedy)
    except (ClusterError, FleetError, AlreadyRunningError, DriverError, ValueError) as error:
        fail(str(error))
    report = run.report()
    write_report(out / "demo.json", report)
    plot_sweep(report, out / "demo.png")
    _print(console, run)
    console.print(f"written: {out / 'demo.json'}, {out / 'demo.png'}")
    try:
        stream_one(console, root, out / "generation", cores)
    except GenerationError as error:
        fail(f"{error.code}: {error}")
    except (ClusterError, AlreadyRunningError) as error:
        fail(str(error))


def _print(console: Console, run: DemoRun) -> None:
    from deploy.cli.demo_table import demo_tables

    for part in demo_tables(run):
        console.print(part, highlight=False)
