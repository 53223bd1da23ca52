"""`orchid status` as it is read."""

from __future__ import annotations

import io

from rich.console import Console

from deploy.cli.tables import status_tables
from deploy.fleet import FleetStatus, PoolView, VariantView


def test_a_quality_of_zero_is_shown_and_the_lack_of_one_is_not() -> None:
    variants = tuple(
        VariantView(name, True, "", 0.0, measured, 1000.0, 1.0, 0.1, 0)
        for name, measured in (("useless", True), ("unknown", False))
    )
    pool = PoolView("m", "sha256:a", "ready", 1, 0, 0, 0.0, variants, {}, (), 1.25)
    status = FleetStatus("cp", "1", "orchid", 1.0, (), (pool,), 0, 0, 0, 0.0, 0, {})
    console = Console(width=120, record=True, file=io.StringIO())
    for table in status_tables(status):
        console.print(table)
    rows = {line.split()[0]: line for line in console.export_text().splitlines() if line.split()}
    assert "0.0000" in rows["useless"]
    assert "0.0000" not in rows["unknown"]
