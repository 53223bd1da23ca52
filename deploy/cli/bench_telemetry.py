"""`orchid bench telemetry`."""

from __future__ import annotations

from typing import Annotated

import typer

from deploy.cli.output import JsonOption, fail
from deploy.cli.results import finish, print_summary


def telemetry(
    repeats: Annotated[int, typer.Option(min=1, help="Medians are over this many.")] = 9,
    seconds: Annotated[float, typer.Option(min=0.2, help="Length of each run.")] = 2.0,
    in_flight: Annotated[int, typer.Option(min=2, help="Requests in flight to saturate.")] = 16,
    sample_ratio: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Share of the requests that are traced.")
    ] = 0.1,
    collector: Annotated[
        str,
        typer.Option(help="OTLP gRPC collector, host:port, to trace to. Default: one of its own."),
    ] = "",
    json: JsonOption = None,
) -> None:
    """Measure what metrics and tracing cost: throughput at saturation with and without them.

    Starts four clusters with a tiny model: without telemetry, with metrics that are scraped
    every second, with traces sent to a collector, and with traces kept in files; loads them in
    turns.
    """
    from rich.console import Console

    from bench.load.processes import DriverError
    from bench.telemetry import TelemetrySettings, run_telemetry
    from deploy.cluster import ClusterError
    from deploy.config import ConfigError

    settings = TelemetrySettings(
        repeats=repeats,
        seconds=seconds,
        in_flight=in_flight,
        sample_ratio=sample_ratio,
        endpoint=collector,
    )
    try:
        with Console().status("starting") as status:
            report = run_telemetry(
                settings, lambda mode, n, of: status.update(f"{n + 1} of {of}: {mode}")
            )
    except (ClusterError, ConfigError, DriverError, OSError, ValueError) as error:
        fail(str(error))
    print_summary(report)
    finish(report, json)
