"""`orchid bench sweep`."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deploy.cli.bench_options import (
    BaselineSecondsOption,
    DeadlineFactorOption,
    FreshOption,
    LoadsOption,
    ModelOption,
    PoliciesOption,
    RepositoryOption,
    SeedsOption,
    WarmupOption,
    WorkersOption,
)
from deploy.cli.output import fail
from deploy.cli.results import names, numbers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

    from bench.compare.settings import CompareSettings
    from bench.compare.store import Store
    from bench.load.plan import Workload
    from bench.report import Report
    from deploy.cluster import ClusterSpec

_QUEUED = 10_000
_DECISIONS = 2_000


def sweep(
    policies: PoliciesOption = "",
    loads: LoadsOption = "0.4,0.6,0.8,0.95,1.1,1.3,2,3",
    seeds: SeedsOption = 3,
    seconds: Annotated[float, typer.Option(min=0.2, help="Measured time of a run.")] = 20.0,
    warmup: WarmupOption = 2.0,
    arrivals: Annotated[str, typer.Option(help="poisson, mmpp or flash.")] = "poisson",
    deadline_factor: DeadlineFactorOption = 3.0,
    deadline_ms: Annotated[float, typer.Option(min=0.0, help="Deadline itself instead.")] = 0.0,
    deadline_mix: Annotated[
        str, typer.Option(help="Factors on the deadline, each as likely: 0.5,1,2.")
    ] = "1",
    workers: WorkersOption = None,
    model: ModelOption = "sentiment",
    repository: RepositoryOption = Path("models"),
    processes: Annotated[int, typer.Option(min=1, help="Driver processes of a run.")] = 1,
    simulate: Annotated[
        str, typer.Option(help="Policies to simulate on the same traffic, with the bound.")
    ] = "price,orchid",
    baseline_seconds: BaselineSecondsOption = 12.0,
    fresh: FreshOption = False,
    json: Annotated[
        Path, typer.Option("--json", help="Result; .csv and .png are written beside it.")
    ] = Path("sweep-results/sweep.json"),
) -> None:
    """Compare policies live over loads and seeds, with the simulator and the bound beside.

    Starts a cluster of its own. All policies meet the same arrivals, texts and deadlines at a
    load and seed, one run after the other. The file is written after each run: the same
    command goes on where it was interrupted.
    """
    from typing import cast

    from bench.compare.settings import CompareSettings, check_policies, known_policies
    from bench.load.plan import Process
    from worker.cpu_plan import read_cpu_plan

    if arrivals not in ("poisson", "mmpp", "flash"):
        fail(f"--arrivals is {arrivals!r}, expected poisson, mmpp or flash")
    try:
        chosen = tuple(names(policies)) or known_policies()
        check_policies([*chosen, *names(simulate)])
        settings = CompareSettings(
            model=model,
            policies=chosen,
            loads=tuple(numbers(loads)),
            seeds=tuple(range(1, seeds + 1)),
            seconds=seconds,
            warmup_s=warmup,
            workers=workers or read_cpu_plan().cores,
            arrivals=cast("Process", arrivals),
            deadline_factor=deadline_factor,
            solo_s=baseline_seconds / 3,
            capacity_s=baseline_seconds * 2 / 3,
            deadline_ms=deadline_ms,
            deadline_mix=tuple(numbers(deadline_mix)),
            driver_processes=processes,
        )
    except ValueError as error:
        fail(str(error))
    _run(settings, repository, json, names(simulate), fresh=fresh)


def _run(
    settings: CompareSettings, repository: Path, path: Path, simulated: list[str], *, fresh: bool
) -> None:
    from rich.console import Console

    from bench.compare.run import run_live, run_simulated, seconds_left, summarise
    from bench.decision import decision_costs
    from bench.workloads import answers_for
    from controlplane.config import ControlPlaneConfig
    from deploy.cli.progress import bench_progress
    from deploy.cluster import LocalCluster

    console = Console()
    with measuring():
        workload = open_workload(repository, settings.model)
        store = open_store(console, settings, "sweep", path, fresh=fresh)
        left_s = seconds_left(settings, store)
        if left_s > 0:
            spec = cluster_spec(settings, path.parent / "cluster", repository)
            with (
                bench_progress(console, left_s) as (notify, on_start),
                LocalCluster(spec) as cluster,
            ):
                cluster.wait_ready(timeout_s=600.0, on_progress=on_start)
                run_live(cluster, settings, workload, store, notify)
        with console.status("simulating") as status:
            answers = answers_for(repository, settings.model, workload)
            run_simulated(settings, workload, store, simulated, status.update, answers)
            if "decision_us_p99" not in store.extra:
                status.update("timing decisions")
                import numpy as np

                costs, _ = decision_costs(
                    ControlPlaneConfig().policy, _QUEUED, settings.workers, _DECISIONS, seed=1
                )
                store.extra["decision_us_p99"] = float(np.percentile(costs, 99)) / 1e3
        store.save(summarise(store))
        show(console, store.report(summarise(store)), path)


@contextmanager
def measuring() -> Iterator[None]:
    """Turns what may go wrong while a cluster is measured into an error of the command."""
    from bench.load.processes import DriverError
    from deploy.cluster import ClusterError
    from deploy.fleet import FleetError
    from deploy.state import AlreadyRunningError

    try:
        yield
    except (ClusterError, FleetError, AlreadyRunningError, DriverError, ValueError) as error:
        fail(str(error), "the same command goes on where it was")


def open_workload(repository: Path, model: str) -> Workload:
    """The model's labelled texts; ends the command when there are none."""
    from bench.workloads import WorkloadError, workload_for

    try:
        return workload_for(repository, model)
    except WorkloadError as error:
        fail(str(error), error.remedy)


def open_store(
    console: Console, settings: CompareSettings, bench: str, path: Path, *, fresh: bool
) -> Store:
    """The result file with what can be kept of it; ends the command when it cannot be kept."""
    from bench.compare.store import Store, StoreMismatchError

    store = Store(path, bench, settings)
    if not fresh:
        try:
            kept = store.resume()
        except (StoreMismatchError, ValueError, KeyError, TypeError) as error:
            fail(str(error), "--fresh measures all anew, or --json names another file")
        if kept:
            console.print(f"{kept} points are kept from {path}", highlight=False)
    return store


def cluster_spec(settings: CompareSettings, directory: Path, repository: Path) -> ClusterSpec:
    """The cluster of a comparison: free ports, only the compared model."""
    from deploy.cluster import ClusterSpec

    return ClusterSpec(
        workers=settings.workers,
        directory=directory,
        listen="127.0.0.1:0",
        policy=settings.policies[0],
        repository=repository,
        models=(settings.model,),
    )


def show(console: Console, report: Report, path: Path) -> None:
    """Prints the table and writes CSV and PNG beside the JSON."""
    from bench.compare.csv_out import write_csv
    from bench.compare.figures import cells
    from bench.compare.plot import plot_compare, plot_scenario
    from deploy.cli.compare_table import compare_table

    baseline = report.settings["baseline"]
    console.print(
        f"{report.settings['workers']} worker(s); {baseline['variant']} alone answers in "
        f"{baseline['solo_p50_ms']:.1f} ms, all together {baseline['capacity_per_s']:.1f}/s: that "
        f"is load 1. Figures in % of the offered; right labels of the on-time answers.",
        highlight=False,
    )
    console.print(compare_table(cells(report.points, baseline["variant"])), highlight=False)
    write_csv(report, path.with_suffix(".csv"))
    draw = plot_scenario if report.bench == "scenario" else plot_compare
    draw(report, path.with_suffix(".png"))
    beside = f"{path.with_suffix('.csv')}, {path.with_suffix('.png')}"
    console.print(f"written: {path}, {beside}", highlight=False)
