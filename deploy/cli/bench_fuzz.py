"""`orchid bench fuzz`."""

from __future__ import annotations

from typing import Annotated

import typer

from deploy.cli.output import JsonOption, fail
from deploy.cli.results import finish, names, print_summary


def fuzz(
    messages: Annotated[int, typer.Option(min=1, help="Messages in all.")] = 1_000_000,
    only: Annotated[str, typer.Option(help="Targets, by comma: oip,manifest. Default: all.")] = "",
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same messages.")] = 1,
    processes: Annotated[
        int | None, typer.Option(min=1, help="Default: one for each granted core.")
    ] = None,
    json: JsonOption = None,
) -> None:
    """Feed changed messages to everything that reads what comes from outside.

    Requests of every front door, what workers say, what a control plane says, manifests, graphs
    and identities. Exits with 1 when a message crashed or stuck its reader, or met an error
    that is none of the reader's own.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    from bench.fuzz.run import names as known
    from bench.fuzz.run import run_fuzz
    from worker.cpu_plan import read_cpu_plan

    chosen = tuple(names(only))
    unknown = sorted(set(chosen) - set(known()))
    if unknown:
        fail(f"no target {', '.join(unknown)}", f"targets: {', '.join(known())}")
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns) as progress:
        task = progress.add_task("", total=messages)
        report = run_fuzz(
            messages,
            seed=seed,
            processes=processes or read_cpu_plan().cores,
            only=chosen,
            progress=lambda done: progress.update(task, completed=done),
        )
    print_summary(report)
    finish(report, json)
    found = [each for point in report.points for each in point["findings"]]
    for each in found[:10]:
        typer.echo(f"{each['target']}: {each['kind']}: {each['error']} ({each['place']})", err=True)
    if found or report.summary["crashes"] or report.summary["hangs"]:
        raise typer.Exit(1)
