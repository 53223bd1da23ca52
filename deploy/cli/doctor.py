"""`orchid doctor`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer


def doctor(
    repository: Annotated[
        Path | None,
        typer.Option(help="Model repository. Default: $ORCHID_REPOSITORY, else ./models."),
    ] = None,
    verify: Annotated[
        bool, typer.Option(help="Also hash every file of every model (reads them all).")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Check this machine: engine library, CPU plan, SIMD level, models.

    Exits with 1 when something would keep Orchid from serving, and says what to do.
    """
    from rich.console import Console
    from rich.table import Table

    from deploy.doctor import Level, examine

    chosen = repository or Path(os.environ.get("ORCHID_REPOSITORY", "models"))
    findings = examine(chosen, verify=verify)
    broken = [finding for finding in findings if finding.level is Level.FAULT]
    if json:
        import json as encoder

        typer.echo(encoder.dumps([finding.as_json() for finding in findings], indent=1))
    else:
        marks = {
            Level.OK: "[green]ok[/]",
            Level.NOTE: "[yellow]note[/]",
            Level.FAULT: "[red]fault[/]",
        }
        table = Table(box=None, pad_edge=False, show_header=False)
        table.add_column(no_wrap=True)
        table.add_column(style="bold", no_wrap=True)
        table.add_column(overflow="fold")
        for finding in findings:
            table.add_row(marks[finding.level], finding.name, finding.detail)
            if finding.remedy:
                table.add_row("", "", f"→ {finding.remedy}")
        Console().print(table, highlight=False)
    if broken:
        raise typer.Exit(1)
