"""`orchid bench ...`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from deploy.cli.access import reaching
from deploy.cli.bench_cascade import cascade
from deploy.cli.bench_decode import decode
from deploy.cli.bench_decode_sim import decode_sim
from deploy.cli.bench_fuzz import fuzz
from deploy.cli.bench_generation import generation
from deploy.cli.bench_isolation import isolation
from deploy.cli.bench_ladder import ladder
from deploy.cli.bench_lanes import lanes
from deploy.cli.bench_load import load
from deploy.cli.bench_operate import operate
from deploy.cli.bench_options import RepositoryOption
from deploy.cli.bench_scenario import scenario
from deploy.cli.bench_sweep import sweep
from deploy.cli.bench_telemetry import telemetry
from deploy.cli.bench_tenants import tenants
from deploy.cli.output import JsonOption, fail
from deploy.cli.results import finish, print_summary

app = typer.Typer(
    help="Measure this machine; every bench can write its result with --json.",
    no_args_is_help=True,
)
app.command()(reaching(load))
app.command()(sweep)
app.command()(scenario)
app.command()(operate)
app.command()(cascade)
app.command()(decode)
app.command()(generation)
app.command()(lanes)
app.command()(isolation)
app.command()(ladder)
app.command()(decode_sim)
app.command()(fuzz)
app.command()(tenants)
app.command()(telemetry)


@app.command()
def overhead(
    repeats: Annotated[int, typer.Option(min=1, help="Medians are over this many.")] = 5,
    seconds: Annotated[float, typer.Option(min=0.2, help="Length of each run.")] = 3.0,
    in_flight: Annotated[int, typer.Option(min=2, help="Requests in flight to saturate.")] = 16,
    json: JsonOption = None,
) -> None:
    """Compare the path's cost with a bare two-hop gRPC echo.

    Starts a control plane with one worker and a tiny model, and a bare unary-in,
    stream-out relay with the same bytes; measures both in turns.
    """
    from rich.console import Console

    from bench.load.processes import DriverError
    from bench.overhead import OverheadSettings, run_overhead
    from deploy.cluster import ClusterError

    settings = OverheadSettings(repeats=repeats, seconds=seconds, in_flight=in_flight)
    try:
        with Console().status("starting") as status:
            report = run_overhead(
                settings, lambda case, n, of: status.update(f"{n + 1} of {of}: {case}")
            )
    except (ClusterError, DriverError, ValueError) as error:
        fail(str(error))
    print_summary(report)
    finish(report, json)


@app.command()
def flood(
    workers: Annotated[
        int | None,
        typer.Option(
            min=1, help="Default: the granted cores but one, for control plane and driver."
        ),
    ] = None,
    factor: Annotated[float, typer.Option(min=1.0, help="Times the capacity to offer.")] = 10.0,
    seconds: Annotated[float, typer.Option(min=1.0, help="Length of the flood.")] = 10.0,
    deadline_ms: Annotated[float, typer.Option(min=1.0, help="Deadline of each.")] = 500.0,
    seed: Annotated[int, typer.Option(help="Seed of arrivals and texts.")] = 1,
    json: JsonOption = None,
) -> None:
    """Offer many times what can be served, and see whether the admitted are on time.

    Starts a control plane and workers with a small synthetic model.
    """
    from rich.console import Console

    from bench.flood import FloodSettings, run_flood
    from bench.load.processes import DriverError
    from deploy.cluster import ClusterError
    from worker.cpu_plan import read_cpu_plan

    settings = FloodSettings(
        workers=workers or max(1, read_cpu_plan().cores - 1),
        factor=factor,
        seconds=seconds,
        deadline_ms=deadline_ms,
        seed=seed,
    )
    try:
        with Console().status("starting") as status:
            report = run_flood(settings, status.update)
    except (ClusterError, DriverError, ValueError) as error:
        fail(str(error))
    print_summary(report)
    finish(report, json)


@app.command()
def accuracy(
    variants: Annotated[
        list[str] | None, typer.Argument(help="Variants to check; default: all of them.")
    ] = None,
    model: Annotated[str, typer.Option(help="Model to check.")] = "sentiment",
    repository: RepositoryOption = Path("models"),
    json: JsonOption = None,
) -> None:
    """Ask every variant about every test text through the whole path.

    The right answers must be as many as the manifest's evaluation counted; exits with 1
    when they are not.
    """
    import tempfile

    from rich.console import Console

    from bench.accuracy import run_accuracy
    from bench.workloads import WorkloadError, workload_for
    from deploy.cluster import ClusterError, ClusterSpec
    from worker.cpu_plan import read_cpu_plan

    try:
        workload = workload_for(repository, model)
        with tempfile.TemporaryDirectory(prefix="orchid-accuracy-") as state:
            spec = ClusterSpec(
                workers=read_cpu_plan().cores,
                directory=Path(state),
                listen="127.0.0.1:0",
                repository=repository,
                models=(model,),
            )
            with Console().status("starting") as status:
                report = run_accuracy(
                    spec,
                    model,
                    workload,
                    variants or (),
                    repository=repository,
                    notify=lambda name, n, of: status.update(f"{n + 1} of {of}: {name}"),
                )
    except WorkloadError as error:
        fail(str(error), error.remedy)
    except (ClusterError, ValueError) as error:
        fail(str(error))
    print_summary(report)
    finish(report, json)
    if report.summary["largest_difference"]:
        raise typer.Exit(1)


@app.command()
def engine(
    rounds: Annotated[int, typer.Option(min=1, help="Medians are over this many.")] = 7,
    seed: Annotated[int, typer.Option(help="Seed of weights and token ids.")] = 1,
    json: JsonOption = None,
) -> None:
    """Compare the engine with the machine's multiply-add rate, padding, and the stock session.

    Builds an encoder of random weights (no download) and runs it on one thread.
    """
    from rich.console import Console

    from bench.engine import EngineSettings, run_engine

    with Console().status("starting") as status:
        report = run_engine(EngineSettings(rounds=rounds, seed=seed), status.update)
    print_summary(report)
    finish(report, json)


@app.command()
def decision(
    queued: Annotated[int, typer.Option(min=1, help="Requests waiting while it decides.")] = 10_000,
    seed: Annotated[int, typer.Option(help="Seed of lengths and deadlines.")] = 1,
    json: JsonOption = None,
) -> None:
    """Time the policy's decisions in a long queue, and a request without gRPC."""
    from bench.decision import run

    report = run(queued, seed)
    print_summary(report)
    finish(report, json)


@app.command()
def plot(
    result: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="A result's JSON.")],
    out: Annotated[Path | None, typer.Option(help="PNG; default: beside the JSON.")] = None,
) -> None:
    """Draw the picture of a bench from its JSON: sweep, scenario, demo, decode or cascade."""
    from bench.cascade_plot import plot_cascade
    from bench.compare.plot import plot_compare, plot_scenario
    from bench.decode.plot import plot_decode
    from bench.plots import plot_sweep
    from bench.report import read_report

    path = out or result.with_suffix(".png")
    try:
        report = read_report(result)
    except ValueError as error:
        fail(str(error))
    pictures = {
        "demo": plot_sweep,
        "sweep": plot_compare,
        "scenario": plot_scenario,
        "decode": plot_decode,
        "cascade": plot_cascade,
    }
    draw = pictures.get(report.bench)
    if draw is None:
        fail(f"{result} is of `orchid bench {report.bench}`, of which there is no picture")
    draw(report, path)
    typer.echo(f"written: {path}")
