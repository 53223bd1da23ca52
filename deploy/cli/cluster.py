"""`orchid down`, `orchid roll`, `orchid status`."""

from __future__ import annotations

from typing import Annotated

import typer

from deploy.cli.cluster_output import print_metrics, print_page, print_status
from deploy.cli.output import (
    DEFAULT_STATE,
    AddressOption,
    StateOption,
    chosen_address,
    connection_remedy,
    fail,
)


def down(state: StateOption = DEFAULT_STATE) -> None:
    """Stop the local cluster that `orchid up` started."""
    from deploy.launch import stop_running

    record = stop_running(state)
    if record is None:
        typer.echo(f"nothing runs from {state}")
    else:
        typer.echo(f"stopped the control plane and {len(record.workers)} worker(s)")


def roll(
    timeout: Annotated[
        float, typer.Option(help="Seconds that one replacement may take to be ready.")
    ] = 300.0,
    state: StateOption = DEFAULT_STATE,
) -> None:
    """Replace every worker of the local cluster, one after the other, under traffic.

    Each is drained only once its replacement serves every model, so nothing is lost; for that time
    there is one worker more. Models that changed on disk are what the new workers load.
    """
    from rich.console import Console

    from deploy.cluster import ClusterError
    from deploy.launch import roll_running

    console = Console()
    try:
        with console.status("replacing workers") as spinner:
            ended = roll_running(state, timeout_s=timeout, on_progress=spinner.update)
    except ClusterError as error:
        fail(str(error))
    if ended.phase == "failed":
        fail(ended.message, "those that were not replaced go on; logs are in the state directory")
    console.print("every worker is replaced")


def status(
    address: AddressOption = "",
    json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
    memory: Annotated[
        bool, typer.Option("--memory", help="Show what each worker's memory is for instead.")
    ] = False,
    state: StateOption = DEFAULT_STATE,
) -> None:
    """Show workers, models and variants as the control plane sees them."""
    from rich.console import Console

    from deploy.fleet import FleetError, fetch_status
    from deploy.state import StateDirectory

    target = chosen_address(address, state)
    record = StateDirectory(state).read()
    # Another control plane's other addresses are not known here.
    own = record if record is not None and record.address == target else None
    local = own.metrics_addresses() if own is not None else {}
    page = own.page if own is not None else ""
    try:
        found = fetch_status(target)
    except FleetError as error:
        usual = "orchid up starts a local cluster; --address names another one"
        fail(str(error), connection_remedy(str(error), usual))
    if json:
        import json as encoder
        from dataclasses import asdict

        typer.echo(encoder.dumps(asdict(found) | {"metrics": local, "page": page}, indent=1))
    elif memory:
        from deploy.cli.memory_tables import memory_tables

        console = Console()
        for table in memory_tables(found):
            console.print(table, highlight=False)
    else:
        console = Console()
        print_status(console, found)
        print_metrics(console, local, own.secure if own is not None else ())
        print_page(console, page)
