"""`orchid bench load`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deploy.cli.output import (
    DEFAULT_STATE,
    AddressOption,
    JsonOption,
    StateOption,
    chosen_address,
    fail,
)
from deploy.cli.results import finish, names, numbers

if TYPE_CHECKING:
    from bench.load.metrics import LoadResult
    from bench.load.plan import LoadPlan, Tenant, Workload
    from bench.load.record import Records


def load(
    rate: Annotated[float, typer.Option(help="Mean arrivals per second.")] = 0.0,
    in_flight: Annotated[
        int, typer.Option(help="Closed loop instead: this many requests in flight.")
    ] = 0,
    trace: Annotated[
        Path | None,
        typer.Option(
            help="Arrivals, lengths and deadlines from this recorded run instead.",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    arrivals: Annotated[str, typer.Option(help="poisson, mmpp or flash.")] = "poisson",
    model: Annotated[str, typer.Option(help="Model to ask.")] = "sentiment",
    repository: Annotated[
        Path, typer.Option(envvar="ORCHID_REPOSITORY", help="Where its test texts are known from.")
    ] = Path("models"),
    seconds: Annotated[float, typer.Option(min=0.1, help="Measured time.")] = 10.0,
    warmup: Annotated[float, typer.Option(min=0.0, help="Time sent before, not counted.")] = 1.0,
    deadline_ms: Annotated[float, typer.Option(min=0.0, help="0: none, or the trace's.")] = 0.0,
    deadline_factors: Annotated[
        str, typer.Option(help="Factors on the deadline, each as likely: 0.5,1,2.")
    ] = "1",
    tenants: Annotated[
        str, typer.Option(help="Who sends, with weights: gold=1,free=3. Default: one, unnamed.")
    ] = "",
    stream: Annotated[bool, typer.Option("--stream", help="One bidirectional stream.")] = False,
    protocol: Annotated[str, typer.Option(help="native or oip.")] = "native",
    variant: Annotated[str, typer.Option(help="Pin this variant.")] = "",
    request_class: Annotated[str, typer.Option("--class", help="Request class.")] = "",
    minimum_quality: Annotated[float, typer.Option(min=0.0, max=1.0)] = 0.0,
    processes: Annotated[int, typer.Option(min=1, help="Driver processes to share it.")] = 1,
    trace_share: Annotated[
        float,
        typer.Option(
            min=0.0, max=1.0, help="Share of the calls to trace from here on; see `orchid trace`."
        ),
    ] = 0.0,
    seed: Annotated[int, typer.Option(help="Seed of arrivals and texts.")] = 1,
    record: Annotated[
        Path | None,
        typer.Option(
            help="Write the run's shapes here (CSV, never texts) for `orchid sim --trace`, "
            "and the served variants' profiles beside it."
        ),
    ] = None,
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

    from bench.load.metrics import measure
    from bench.load.plan import LoadPlan, Process, Protocol
    from bench.load.processes import DriverError
    from bench.load.run import run_records
    from bench.report import host_facts, make_report
    from bench.workloads import WorkloadError, workload_for
    from deploy.fleet import FleetError
    from deploy.traces.client import kept_in

    if protocol not in ("native", "oip"):
        fail(f"--protocol is {protocol!r}, expected native or oip")
    if arrivals not in ("poisson", "mmpp", "flash"):
        fail(f"--arrivals is {arrivals!r}, expected poisson, mmpp or flash")
    if sum(map(bool, (rate, in_flight, trace))) != 1:
        fail("give one of --rate or --trace (open loop) and --in-flight (closed loop)")
    target = chosen_address(address, state)
    try:
        workload = workload_for(repository, model)
        plan = LoadPlan(
            target=target,
            model=model,
            mode="closed" if in_flight else "open",
            rate_per_s=rate,
            arrivals=cast("Process", "trace" if trace else arrivals),
            trace=str(trace or ""),
            concurrency=max(1, in_flight),
            duration_s=seconds,
            warmup_s=warmup,
            deadline_ms=deadline_ms,
            deadline_factors=tuple(numbers(deadline_factors)),
            tenants=_tenants(tenants),
            stream=stream,
            protocol=cast("Protocol", protocol),
            variant=variant,
            request_class=request_class,
            minimum_quality=minimum_quality,
            seed=seed,
            watch=_cluster_pids(state),
            trace_share=trace_share,
            trace_directory=str(kept_in(state, target) or ""),
        )
        host = host_facts()
        records = run_records(plan, workload, processes=processes)
        result = measure(plan, workload, records)
        if record is not None:
            _record(record, records, workload, plan)
    except WorkloadError as error:
        fail(str(error), error.remedy)
    except ValueError as error:
        fail(str(error))
    except (DriverError, FleetError, OSError) as error:
        fail(str(error), f"is a control plane running at {target}? orchid status")
    _print(result)
    report = make_report(
        "load",
        host=host,
        settings=asdict(plan),
        points=[result.as_point()],
        summary=load_summary(result),
    )
    finish(report, json)


def load_summary(result: LoadResult) -> dict[str, float]:
    """The flat figures of one load run, without those that are not a number."""
    summary = {
        "offered_per_s": result.offered_per_s,
        "answered_per_s": result.answered_per_s,
        "on_time": result.on_time,
        "on_time_of_admitted": result.on_time_of_admitted,
        "accuracy": result.accuracy,
        "right_share": result.right_share,
        "accurate_goodput": result.accurate_goodput,
        "cpu_cost": result.cpu_cost_ms,
        "driver_cpu_ms_per_request": result.driver_cpu_ms_per_request,
        "send_lag_p99_ms": result.send_lag_p99_ms,
    }
    if result.latency is not None:
        summary |= {
            "p50_ms": result.latency.p50_ms,
            "p95_ms": result.latency.p95_ms,
            "p99_ms": result.latency.p99_ms,
        }
    return {name: value for name, value in summary.items() if value == value}


def _tenants(text: str) -> tuple[Tenant, ...]:
    from bench.load.plan import Tenant

    found = []
    for part in names(text):
        name, _, weight = part.partition("=")
        found.append(Tenant(name, numbers(weight, 1)[0] if weight else 1.0))
    return tuple(found)


def _record(path: Path, records: Records, workload: Workload, plan: LoadPlan) -> None:
    from bench.load.trace import write_recording
    from bench.sim.live import live_model
    from bench.sim.model import write_profile

    write_recording(path, records, workload)
    profile = path.with_suffix(".profile.json")
    write_profile(profile, live_model(plan.target, plan.model))
    typer.echo(f"written: {path}, {profile}")


def _cluster_pids(state: Path) -> dict[str, int]:
    """Processes of the local cluster, whose CPU is then reported; none when it is elsewhere."""
    from deploy.state import StateDirectory

    record = StateDirectory(state).read()
    if record is None:
        return {}
    workers = {worker.name: worker.pid for worker in record.workers}
    return {"controlplane": record.controlplane_pid, **workers}


def _print(result: LoadResult) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold")
    table.add_column()
    rows = {
        "offered": f"{result.offered} ({result.offered_per_s:.1f}/s)",
        "on time": f"{result.on_time_answers} ({result.on_time:.2%}), "
        f"{result.on_time_of_admitted:.2%} of the admitted",
        "missed": f"late {result.late}, refused {result.refused}, shed {result.shed}, "
        f"lost {result.lost}",
        "accuracy": _percent(result.accuracy) and f"{result.accuracy:.2%} of the on-time answers",
        "right": f"{result.right_share:.2%} of the offered, on time; "
        f"expected {_percent(result.accurate_goodput) or 'unknown'}",
        "statuses": ", ".join(f"{name} {n}" for name, n in result.outcomes.items()),
        "answered by": ", ".join(f"{n} {s:.1%}" for n, s in result.variant_share.items()),
    }
    for name, figures in result.tenants.items():
        rows[f"tenant {name}"] = f"offered {figures['offered']}, on time {figures['on_time']:.2%}"
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


def _percent(value: float) -> str:
    return f"{value:.2%}" if value == value else ""
