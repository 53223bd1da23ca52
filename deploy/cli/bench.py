"""`orchid bench ...`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deploy.cli.output import DEFAULT_STATE, AddressOption, JsonOption, StateOption, fail

if TYPE_CHECKING:
    from bench.load.metrics import LoadResult
    from bench.report import Report

app = typer.Typer(
    help="Measure this machine; every bench can write its result with --json.",
    no_args_is_help=True,
)


@app.command()
def load(
    rate: Annotated[float, typer.Option(help="Poisson arrivals per second.")] = 0.0,
    in_flight: Annotated[
        int, typer.Option(help="Closed loop instead: this many requests in flight.")
    ] = 0,
    model: Annotated[str, typer.Option(help="Model to ask.")] = "sentiment",
    repository: Annotated[
        Path, typer.Option(envvar="ORCHID_REPOSITORY", help="Where its test texts are known from.")
    ] = Path("models"),
    seconds: Annotated[float, typer.Option(min=0.1, help="Measured time.")] = 10.0,
    warmup: Annotated[float, typer.Option(min=0.0, help="Time sent before, not counted.")] = 1.0,
    deadline_ms: Annotated[float, typer.Option(min=0.0, help="0: none.")] = 0.0,
    stream: Annotated[bool, typer.Option("--stream", help="One bidirectional stream.")] = False,
    protocol: Annotated[str, typer.Option(help="native or oip.")] = "native",
    variant: Annotated[str, typer.Option(help="Pin this variant.")] = "",
    request_class: Annotated[str, typer.Option("--class", help="Request class.")] = "",
    minimum_quality: Annotated[float, typer.Option(min=0.0, max=1.0)] = 0.0,
    processes: Annotated[int, typer.Option(min=1, help="Driver processes to share it.")] = 1,
    seed: Annotated[int, typer.Option(help="Seed of arrivals and texts.")] = 1,
    json: JsonOption = None,
    address: AddressOption = "",
    state: StateOption = DEFAULT_STATE,
) -> None:
    """Send traffic to a running control plane and measure what comes back.

    Open loop: arrivals do not wait for answers, and latency counts from when a request
    was due, so a stalled server cannot hide what it held up.
    """
    from dataclasses import asdict
    from typing import cast

    from bench.load.plan import LoadPlan, Protocol
    from bench.load.run import DriverError, run_load
    from bench.report import host_facts, make_report
    from bench.workloads import WorkloadError, workload_for
    from deploy.state import running_address

    if protocol not in ("native", "oip"):
        fail(f"--protocol is {protocol!r}, expected native or oip")
    if bool(rate) == bool(in_flight):
        fail("give either --rate (open loop) or --in-flight (closed loop)")
    target = address or running_address(state)
    try:
        workload = workload_for(repository, model)
        plan = LoadPlan(
            target=target,
            model=model,
            mode="open" if rate else "closed",
            rate_per_s=rate,
            concurrency=max(1, in_flight),
            duration_s=seconds,
            warmup_s=warmup,
            deadline_ms=deadline_ms,
            stream=stream,
            protocol=cast("Protocol", protocol),
            variant=variant,
            request_class=request_class,
            minimum_quality=minimum_quality,
            seed=seed,
            watch=_cluster_pids(state),
        )
        host = host_facts()
        result = run_load(plan, workload, processes=processes)
    except WorkloadError as error:
        fail(str(error), error.remedy)
    except (DriverError, ValueError) as error:
        fail(str(error), f"is a control plane running at {target}? orchid status")
    _print_load(result)
    report = make_report(
        "load",
        host=host,
        settings=asdict(plan),
        points=[result.as_point()],
        summary=load_summary(result),
    )
    _finish(report, json)


def load_summary(result: LoadResult) -> dict[str, float]:
    """The flat figures of one load run."""
    summary = {
        "offered_per_s": result.offered_per_s,
        "answered_per_s": result.answered_per_s,
        "on_time_share": result.on_time_share,
        "right_share": result.right_share,
        "driver_cpu_ms_per_request": result.driver_cpu_ms_per_request,
        "send_lag_p99_ms": result.send_lag_p99_ms,
    }
    if result.latency is not None:
        summary |= {
            "p50_ms": result.latency.p50_ms,
            "p95_ms": result.latency.p95_ms,
            "p99_ms": result.latency.p99_ms,
        }
    return summary


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

    from bench.load.run import DriverError
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
    _print_summary(report)
    _finish(report, json)


@app.command()
def accuracy(
    variants: Annotated[
        list[str] | None, typer.Argument(help="Variants to check; default: all of them.")
    ] = None,
    model: Annotated[str, typer.Option(help="Model to check.")] = "sentiment",
    repository: Annotated[
        Path, typer.Option(envvar="ORCHID_REPOSITORY", help="Model repository.")
    ] = Path("models"),
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
    _print_summary(report)
    _finish(report, json)
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
    _print_summary(report)
    _finish(report, json)


@app.command()
def decision(
    queued: Annotated[int, typer.Option(min=1, help="Requests waiting while it decides.")] = 10_000,
    seed: Annotated[int, typer.Option(help="Seed of lengths and deadlines.")] = 1,
    json: JsonOption = None,
) -> None:
    """Time the policy's decisions in a long queue, and a request without gRPC."""
    from bench.decision import run

    report = run(queued, seed)
    _print_summary(report)
    _finish(report, json)


@app.command()
def plot(
    result: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="A sweep's JSON.")],
    out: Annotated[Path | None, typer.Option(help="PNG; default: beside the JSON.")] = None,
) -> None:
    """Draw a sweep's picture again from its JSON."""
    from bench.plots import plot_sweep
    from bench.report import read_report

    path = out or result.with_suffix(".png")
    plot_sweep(read_report(result), path)
    typer.echo(f"written: {path}")


def _cluster_pids(state: Path) -> dict[str, int]:
    """Processes of the local cluster, whose CPU is then reported; none when it is elsewhere."""
    from deploy.state import StateDirectory

    record = StateDirectory(state).read()
    if record is None:
        return {}
    workers = {worker.name: worker.pid for worker in record.workers}
    return {"controlplane": record.controlplane_pid, **workers}


def _print_load(result: LoadResult) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold")
    table.add_column()
    rows = {
        "offered": f"{result.offered} ({result.offered_per_s:.1f}/s)",
        "on time": f"{result.on_time} ({result.on_time_share:.2%})",
        "accuracy": "" if result.accuracy != result.accuracy else f"{result.accuracy:.2%}",
        "outcomes": ", ".join(f"{name} {n}" for name, n in result.outcomes.items()),
        "answered by": ", ".join(f"{n} {s:.1%}" for n, s in result.variant_share.items()),
    }
    if result.latency is not None:
        lat = result.latency
        rows["latency ms"] = (
            f"p50 {lat.p50_ms:.2f}, p95 {lat.p95_ms:.2f}, p99 {lat.p99_ms:.2f}, "
            f"max {lat.max_ms:.2f}"
        )
    rows["CPU ms/request"] = ", ".join(
        f"{name} {ms:.3f}" for name, ms in result.cpu_ms_per_request.items()
    )
    rows["driver"] = (
        f"{result.driver_cpu_ms_per_request:.3f} CPU ms/request, "
        f"p99 {result.send_lag_p99_ms:.1f} ms late"
    )
    rows |= {name: text for name, text in result.examples.items() if text}
    for name, value in rows.items():
        if value:
            table.add_row(name, value)
    Console().print(table, highlight=False)


def _print_summary(report: Report) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold")
    table.add_column(justify="right")
    for name, value in report.summary.items():
        table.add_row(name, f"{value:.4g}")
    Console().print(table, highlight=False)


def _finish(report: Report, json: Path | None) -> None:
    from bench.report import write_report

    if json is not None:
        write_report(json, report)
        typer.echo(f"written: {json}")
