"""`orchid drill`: scripted emergencies on a cluster of its own, judged by what must happen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from deploy.cli.output import JsonOption, fail

if TYPE_CHECKING:
    from rich.console import Console

    from bench.drill.run import Played


def drill(
    scene: Annotated[
        list[str] | None,
        typer.Argument(help="Scenes to play, as `floor violated`. Default: all.", metavar="SCENE"),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=2, help="Workers. Default: as many as cores, at least 2.")
    ] = None,
    seconds: Annotated[float, typer.Option(min=2.0, help="Seconds of each scene.")] = 4.0,
    scale: Annotated[
        float, typer.Option(min=0.01, max=1.0, help="Requests take this part of the fixture's.")
    ] = 0.3,
    deadline_ms: Annotated[float, typer.Option(min=10.0, help="Deadline of requests.")] = 1000.0,
    simulate: Annotated[
        bool, typer.Option("--simulate", help="Play the simulated side alone.")
    ] = False,
    json: JsonOption = None,
) -> None:
    """Play a surge, a fallback below its floor, a lost worker, wrong predictions and a flood.

    On processes of this machine, with a synthetic model whose variants take what the fixture says,
    and on the virtual clock of the simulator. Shows what happened against what must; exits with 1
    when something did not.
    """
    from rich.console import Console

    from bench.drill.run import DrillSettings, chosen, report
    from bench.drill.run import drill as play
    from deploy.cluster import ClusterError
    from deploy.fleet import FleetError
    from worker.cpu_plan import read_cpu_plan

    settings = DrillSettings(
        workers=workers or max(2, read_cpu_plan().cores),
        time=scale,
        seconds=seconds,
        deadline_ms=deadline_ms,
        only=tuple(scene or ()),
        live=not simulate,
    )
    try:
        chosen(settings)
    except ValueError as error:
        fail(str(error))
    console = Console()
    played: list[Played] = []
    try:
        with Console(stderr=True).status("beginning") as spinner:
            for each in play(settings, spinner.update):
                played.append(each)
                _show(console, each, live=settings.live)
    except (ClusterError, FleetError) as error:
        fail(str(error))
    if json is not None:
        from bench.report import write_report

        write_report(json, report(settings, played))
    failed = [each.scene.name for each in played if not each.ok]
    if failed:
        fail(f"not as it must be: {', '.join(failed)}", "docs/overload.md says what each shows")
    console.print(f"{len(played)} scenes, all as they must be")


def _show(console: Console, played: Played, *, live: bool) -> None:
    from rich.table import Table
    from rich.text import Text

    console.print(Text(f"{played.scene.name}: {played.scene.tells}", style="bold"))
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 2), header_style="dim")
    for heading in ("", "must be", *(("live",) if live else ()), "simulated", ""):
        table.add_column(heading)
    for check in played.checks:
        word = Text("ok", style="green") if check.ok else Text("NOT SO", style="bold red")
        cells = [check.what, check.must, *((check.live,) if live else ()), check.simulated]
        table.add_row(*cells, word)
    console.print(table)
