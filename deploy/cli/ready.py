"""`orchid ready`: the health check of containers, and of whoever waits for a process."""

from __future__ import annotations

from typing import Annotated

import typer


def ready(
    address: Annotated[str, typer.Argument(help="Control plane or worker, host:port.")],
    service: Annotated[
        str,
        typer.Option(
            help="A model, orchid.v1.Fleet (a control plane that answers) or orchid.v1.Worker "
            "(a worker that takes work). Default: whether any model can be asked."
        ),
    ] = "",
    timeout: Annotated[float, typer.Option(min=0.01, help="Seconds to wait for an answer.")] = 2.0,
    wait: Annotated[
        float, typer.Option(min=0.0, help="Ask again for so many seconds until it is ready.")
    ] = 0.0,
) -> None:
    """Exit with 0 when a control plane or worker serves, else say why not and exit with 1."""
    from deploy.health import await_ready

    reason = await_ready(address, service, timeout_s=timeout, wait_s=wait)
    if reason:
        typer.echo(f"{address} is not ready: {reason}", err=True)
        raise typer.Exit(1)
