"""`orchid bench telemetry`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from deploy.cli.output import JsonOption, fail
from deploy.cli.results import finish

if TYPE_CHECKING:
    from bench.report import Report


def telemetry(
    repeats: Annotated[int, typer.Option(min=2, help="Medians are over this many.")] = 100,
    seconds: Annotated[float, typer.Option(min=0.2, help="Length of each slice.")] = 0.25,
    in_flight: Annotated[int, typer.Option(min=2, help="Requests in flight to saturate.")] = 16,
    share: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Share of traced requests to tell the cost of.")
    ] = 0.1,
    collector: Annotated[
        str,
        typer.Option(help="OTLP gRPC collector, host:port, to trace to. Default: one of its own."),
    ] = "",
    json: JsonOption = None,
) -> None:
    """Measure what metrics and tracing cost: CPU a request and throughput, with and without them.

    Starts two clusters with a tiny model and loads them in turns, in short slices in drawn order:
    with nothing; scraped often; with every request traced to a collector, or into files. What is
    compared is always the same processes with and without it; what is told is the part that a
    scrape a second, and a share of traced requests, take of it.
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
        share=share,
        endpoint=collector,
    )
    try:
        with Console().status("starting") as status:
            report = run_telemetry(
                settings, lambda mode, n, of: status.update(f"{n + 1} of {of}: {mode}")
            )
    except (ClusterError, ConfigError, DriverError, OSError, ValueError) as error:
        fail(str(error))
    _print(report)
    finish(report, json)


def _print(report: Report) -> None:
    from rich.console import Console
    from rich.table import Table

    summary, settings = report.summary, report.settings
    share = f"{100 * settings['share']:g} % of the requests traced"
    told = {
        "metrics": f"scraped every {settings['scrape_s']:g} s",
        "tracing": f"{share}, to a collector",
        "file": f"{share}, into files",
        "null": "nothing, against nothing",
    }
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold dim")
    table.add_column("what is compared with the same without it")
    for heading in ("CPU a request", "95 %", "throughput", "95 %"):
        table.add_column(heading, justify="right", no_wrap=True)
    for mode, what in told.items():
        cpu = [100 * (summary[f"{mode}_cpu_ratio{side}"] - 1) for side in ("", "_low", "_high")]
        lost = [-100 * summary[f"{mode}_cost{side}"] for side in ("", "_high", "_low")]
        cells: list[str] = []
        for middle, low, high in (cpu, lost):
            cells += [f"{middle:+.1f} %", f"{low:+.1f} to {high:+.1f}"]
        table.add_row(what, *cells)
    console = Console()
    console.print(table, highlight=False)
    console.print(
        f"without anything {summary['off_cpu_ms']:.3f} CPU ms a request, "
        f"{summary['off_rps']:.0f} a second; of that {summary['unsampled_us']:.2f} us to see that "
        f"a request is not to be traced\na scrape: {summary['scrape_ms']:.1f} ms, "
        f"{summary['scrape_bytes'] / 1e3:.0f} kB",
        highlight=False,
    )
