"""`orchid controlplane` and `orchid worker`: one process each, in the foreground."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from deploy.cli.output import ConfigOption, InsecureOption, fail


def controlplane(
    config: ConfigOption = None,
    listen: Annotated[str | None, typer.Option(help="host:port to serve on.")] = None,
    http_listen: Annotated[
        str | None, typer.Option(help="host:port to serve HTTP on. Default: nowhere.")
    ] = None,
    metrics_listen: Annotated[
        str | None, typer.Option(help="host:port to serve metrics on. Default: nowhere.")
    ] = None,
    status_listen: Annotated[
        str | None, typer.Option(help="host:port to serve the status page on. Default: nowhere.")
    ] = None,
    policy: Annotated[
        str | None, typer.Option(help="price, or one to compare with; see docs/operations.md.")
    ] = None,
    insecure: InsecureOption = False,
) -> None:
    """Run a control plane in the foreground.

    Settings come from the file's `controlplane:` section, then ORCHID_CONTROLPLANE_*
    variables, then these options.
    """
    overrides = {
        "listen": listen,
        "http_listen": http_listen,
        "metrics_listen": metrics_listen,
        "status_listen": status_listen,
        "policy": policy,
        "insecure": insecure or None,
    }
    _serve("controlplane", config, overrides)


def worker(
    config: ConfigOption = None,
    listen: Annotated[str | None, typer.Option(help="host:port to serve on; port 0: any.")] = None,
    controlplane: Annotated[
        str | None, typer.Option(help="Control plane to join, host:port; none: serve alone.")
    ] = None,
    repository: Annotated[Path | None, typer.Option(help="Model repository.")] = None,
    worker_class: Annotated[
        str | None, typer.Option(help="encoder, or decode for models that generate text.")
    ] = None,
    metrics_listen: Annotated[
        str | None, typer.Option(help="host:port to serve metrics on. Default: nowhere.")
    ] = None,
    insecure: InsecureOption = False,
) -> None:
    """Run a worker in the foreground.

    Settings come from the file's `worker:` section, then ORCHID_WORKER_* variables, then
    these options. A decode worker is also told by the `decode:` section and ORCHID_DECODE_*.
    """
    overrides = {
        "listen": listen,
        "controlplane": controlplane,
        "repository": repository,
        "worker_class": worker_class,
        "metrics_listen": metrics_listen,
        "insecure": insecure or None,
    }
    _serve("worker", config, overrides)


def _serve(service: str, config: Path | None, options: dict[str, Any]) -> None:
    from deploy.config import ConfigError
    from deploy.services import serve

    try:
        serve(
            service,
            config=config,
            env=os.environ,
            overrides={key: value for key, value in options.items() if value is not None},
            ready=lambda address: typer.echo(f"{service} listens on {address}", err=True),
            http_ready=lambda address: typer.echo(f"{service} serves HTTP on {address}", err=True),
            metrics_ready=lambda address: typer.echo(
                f"{service} serves metrics on {address}", err=True
            ),
            page_ready=lambda url: typer.echo(
                f"{service} serves the status page on {url}/", err=True
            ),
        )
    except ConfigError as error:
        fail(str(error))
