"""What `orchid up` and `orchid status` print of a cluster."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from deploy.fleet_views import FleetStatus


def print_status(console: Console, status: FleetStatus) -> None:
    """Workers, models and variants as tables."""
    from deploy.cli.tables import status_tables

    for table in status_tables(status):
        console.print(table, highlight=False)


def print_metrics(console: Console, addresses: Mapping[str, str], secure: Collection[str]) -> None:
    """Where metrics are served, the control plane's first; those of `secure` by TLS."""
    urls = [
        f"{name} http{'s' if name in secure else ''}://{address}/metrics"
        for name, address in addresses.items()
    ]
    label = "metrics: "
    if urls:
        lines = f"\n{' ' * len(label)}".join(urls)
        console.print(f"{label}{lines}", highlight=False, soft_wrap=True)


def print_page(console: Console, page: str) -> None:
    """Where the status page is; nothing when there is none."""
    if page:
        console.print(f"status page: {page}/", highlight=False)
