"""`orchid up`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deploy.cli.cluster_output import print_metrics, print_page, print_status
from deploy.cli.output import (
    DEFAULT_STATE,
    ConfigOption,
    InsecureOption,
    StateOption,
    fail,
    warn,
)

if TYPE_CHECKING:
    from deploy.cluster import ClusterSpec
    from deploy.fleet_views import FleetStatus
    from deploy.status_page import PagePlan


def up(
    workers: Annotated[
        int | None,
        typer.Option(min=0, help="Encoder workers. Default: as many as the granted cores hold."),
    ] = None,
    decode_threads: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Threads of the decode worker, 0 for none. Default: half of the granted cores "
            "where the repository has a model that generates text.",
        ),
    ] = None,
    policy: Annotated[
        str | None, typer.Option(help="price, or one to compare with; see docs/operations.md.")
    ] = None,
    config: ConfigOption = None,
    repository: Annotated[
        Path | None,
        typer.Option(help="Model repository. Default: $ORCHID_REPOSITORY, else ./models."),
    ] = None,
    listen: Annotated[
        str | None, typer.Option(help="Where the control plane serves. Default: its configuration.")
    ] = None,
    http: Annotated[
        str | None,
        typer.Option(
            help="Where HTTP is served (OpenAI's API, Open Inference Protocol), host:port. "
            "Default: its configuration, which is nowhere."
        ),
    ] = None,
    metrics_listen: Annotated[
        str | None,
        typer.Option(
            help="Where the control plane serves metrics, host:port; workers take the ports that "
            "follow. Default: its configuration, else 127.0.0.1:9464 or the next free port."
        ),
    ] = None,
    no_metrics: Annotated[bool, typer.Option("--no-metrics", help="Serve no metrics.")] = False,
    no_records: Annotated[
        bool, typer.Option("--no-records", help="Keep no records of requests; see orchid records.")
    ] = False,
    trace_sample: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            max=1.0,
            help="Share of requests that are recorded for `orchid trace`. Default: the "
            "configuration's, which is 0.01; whoever sends a sampled traceparent always is.",
        ),
    ] = None,
    otlp: Annotated[
        str | None,
        typer.Option(help="A collector to send spans to as well, host:port or https://host:port."),
    ] = None,
    page: Annotated[
        str | None,
        typer.Option(
            help="Where the status page is served, host:port, or off. Default: its configuration, "
            "else 127.0.0.1:8901 or any free port."
        ),
    ] = None,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Return when ready; `orchid down` stops it.")
    ] = False,
    oversubscribe: Annotated[
        bool, typer.Option(help="Allow more workers than granted cores.")
    ] = False,
    insecure: InsecureOption = False,
    timeout: Annotated[float, typer.Option(help="Seconds to wait until all is ready.")] = 300.0,
    state: StateOption = DEFAULT_STATE,
) -> None:
    """Start a control plane and workers on this machine.

    Models that generate text get a decode worker beside the encoder workers; each class keeps to
    its own cores.
    Processes that die are started again with backoff. Nothing outlives this command (or,
    with --detach, its launcher). Logs are in the state directory. With --detach, exits with 1
    when a model cannot be loaded, though the others serve.
    """
    from deploy.budget import core_budget, decode_share
    from deploy.cluster import ClusterError, ClusterSpec
    from deploy.config import ConfigError
    from deploy.records.settings import records_overrides
    from deploy.services import decode_config, repository_models, served_models, worker_config
    from deploy.state import AlreadyRunningError, StateError, running_address
    from deploy.traces.settings import tracing_overrides
    from worker.cpu_plan import OversubscribedError, read_cpu_plan

    plan = read_cpu_plan()
    try:
        given = {"repository": repository} if repository is not None else {}
        settings = worker_config(config, os.environ, given)
        tracing = tracing_overrides(config, os.environ, state, share=trace_sample, endpoint=otlp)
        kept = records_overrides(config, os.environ, state, off=no_records)
        served = served_models(settings)
        share = decode_share(plan, encoders=bool(served.encoders)) if served.generators else 0
        if decode_threads is None and share:
            decoding = decode_config(config, os.environ, given, threads=share)
            share = decoding.intra_op_threads
        budget = core_budget(
            plan,
            encoders=workers if workers is not None or served.encoders else 0,
            encoder_threads=settings.intra_op_threads,
            decode_threads=share if decode_threads is None else decode_threads,
            oversubscribe=oversubscribe,
        )
    except ConfigError as error:
        fail(str(error))
    except OversubscribedError as error:
        fail(
            str(error),
            "--oversubscribe starts them all the same, --workers and --decode-threads set both",
        )
    unknown = sorted(set(settings.models) - repository_models(settings))
    if unknown:
        fail(
            f"no model {', '.join(unknown)} in {settings.repository}, which worker.models names",
            "orchid models list shows what there is",
        )
    if not served.all:
        fail(
            f"no models in {settings.repository}",
            "orchid models build (or --small, or --language-model) makes one",
        )
    if not budget.encoders and not (served.generators and budget.decode_threads):
        fail(
            f"no worker is asked for that serves a model of {settings.repository}",
            "--workers starts encoder workers, --decode-threads a decode worker",
        )
    try:
        metrics, exact = _metrics(metrics_listen, no_metrics, config)
        plan_of_page = _page_plan(page, config)
    except ConfigError as error:
        fail(str(error))
    if plan_of_page.why and not running_address(state):
        warn(plan_of_page.why)
    plain = {"insecure": True} if insecure else {}
    spec = ClusterSpec(
        workers=budget.encoders,
        decode_threads=budget.decode_threads,
        controlplane={**plain, **tracing.controlplane, **kept},
        worker={"cpus": budget.encoder_cpus, **plain, **tracing.worker},
        decode={"cpus": budget.decode_cpus},
        directory=state,
        config=config,
        listen=listen,
        http=http,
        metrics=metrics,
        metrics_exact=exact,
        page=plan_of_page.listen,
        policy=policy,
        repository=repository,
        supervise=True,
    )
    try:
        if detach:
            more = {"--trace-sample": trace_sample, "--otlp": otlp}
            flags = {"--insecure": insecure, "--no-records": no_records}
            _up_detached(spec, timeout, more, [flag for flag, on in flags.items() if on])
        else:
            _up_foreground(spec, timeout)
    except (ClusterError, ConfigError, AlreadyRunningError, StateError) as error:
        fail(str(error))


def _up_foreground(spec: ClusterSpec, timeout: float) -> None:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from deploy.cluster import LocalCluster
    from deploy.launch import run_until_signalled
    from deploy.readiness import Readiness, failures

    console = Console()
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("starting", total=1.0)

        def show(readiness: Readiness) -> None:
            text = f"{readiness.ready} of {readiness.wanted} workers ready, loading models"
            progress.update(task, description=text, completed=readiness.progress)

        def ready(status: FleetStatus) -> None:
            progress.stop()
            print_status(console, status)
            if cluster.failed:
                warn(failures(cluster.failed))
            served = _served(cluster.address, cluster.http_address)
            console.print(f"serving on {served}; Ctrl-C stops it")
            print_metrics(console, cluster.metrics_addresses(), cluster.secure_metrics())
            print_page(console, cluster.page_url)

        cluster = LocalCluster(spec)
        run_until_signalled(cluster, ready_timeout_s=timeout, on_progress=show, on_ready=ready)
    console.print("stopped")


def _up_detached(
    spec: ClusterSpec, timeout: float, more: Mapping[str, object], flags: Sequence[str]
) -> None:
    from rich.console import Console

    from deploy.launch import start_detached
    from deploy.status_page import OFF

    options = {
        "--workers": spec.workers,
        "--decode-threads": spec.decode_threads,
        "--state": spec.directory,
        "--repository": spec.repository,
        "--timeout": timeout,
        "--config": spec.config,
        "--listen": spec.listen,
        "--http": spec.http,
        "--metrics-listen": spec.metrics if spec.metrics_exact else None,
        "--page": spec.page or OFF,
        "--policy": spec.policy,
        **more,
    }
    arguments = ["--oversubscribe", *flags]
    if not spec.metrics:
        arguments.append("--no-metrics")
    for name, value in options.items():
        if value is not None:
            arguments += [name, str(value)]
    console = Console()
    with console.status("starting") as spinner:
        record = start_detached(
            arguments,
            spec.directory,
            timeout_s=timeout,
            on_phase=lambda r: spinner.update(f"{r.phase}: {len(r.workers)} worker(s)"),
        )
    usual = spec.directory == DEFAULT_STATE
    stop = "orchid down" if usual else f"orchid down --state {spec.directory}"
    served = _served(record.address, record.http)
    console.print(f"serving on {served}; `{stop}` stops it")
    print_metrics(console, record.metrics_addresses(), record.secure)
    print_page(console, record.page)
    if record.message:
        fail(record.message, "the other models serve; repair these, then `orchid models load`")


def _served(address: str, http: str) -> str:
    """Where a cluster serves, for a console."""
    return f"[bold]{address}[/]" + (f" and [bold]http://{http}/v1[/]" if http else "")


def _metrics(listen: str | None, off: bool, config: Path | None) -> tuple[str, bool]:
    """Where metrics are to be served first, and whether only there."""
    from controlplane.config import ControlPlaneConfig
    from deploy.config import load_config
    from deploy.metrics_ports import DEFAULT_METRICS

    if off:
        if listen:
            fail("--metrics-listen and --no-metrics exclude each other")
        return "", False
    given = {} if listen is None else {"metrics_listen": listen}
    configured = load_config(ControlPlaneConfig, "controlplane", config, os.environ, given)
    if configured.metrics_listen:
        return configured.metrics_listen, True
    return DEFAULT_METRICS, False


def _page_plan(asked: str | None, config: Path | None) -> PagePlan:
    from controlplane.config import ControlPlaneConfig
    from deploy.config import load_config
    from deploy.status_page import page_plan

    configured = load_config(ControlPlaneConfig, "controlplane", config, os.environ, {})
    return page_plan(asked, configured.status_listen)
