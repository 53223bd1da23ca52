"""`orchid bench ladder`: the levels of overload on a virtual clock."""

from __future__ import annotations

from typing import Annotated

import typer

from deploy.cli.output import JsonOption, fail
from deploy.cli.results import finish, numbers, print_summary


def ladder(
    seconds: Annotated[float, typer.Option(min=4.0, help="Span of the arrivals.")] = 20.0,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each, seeds 1 to N.")] = 3,
    factors: Annotated[
        str, typer.Option(help="Calls, as multiples of what the control plane can answer.")
    ] = "1.2,1.5,2,2.5,3",
    json: JsonOption = None,
) -> None:
    """Play bursts of a batch class beside interactive requests, and a control plane out of breath.

    The live scheduler and ladder. Shows how often levels change, and on each level the share of
    the interactive requests that were let in there and answered on time.
    """
    from rich.console import Console

    from bench.ladder import LadderSettings, run_ladder

    try:
        settings = LadderSettings(seconds, seeds, numbers(factors))
    except ValueError as error:
        fail(str(error), "--factors takes numbers by comma")
    with Console(stderr=True).status("simulating") as status:
        report = run_ladder(settings, status.update)
    print_summary(report)
    finish(report, json)
