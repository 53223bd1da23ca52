"""`orchid trace`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from deploy.cli.output import DEFAULT_STATE, StateOption, fail

if TYPE_CHECKING:
    from deploy.traces.tree import Trace

RECENT = "recent"
_SLOW_MS = 1000.0


def trace(
    which: Annotated[
        str, typer.Argument(help="recent, or the first digits of a trace's id.", metavar="ID")
    ] = RECENT,
    slow: Annotated[
        bool,
        typer.Option("--slow", help=f"Only those that failed or took {_SLOW_MS / 1e3:g} s."),
    ] = False,
    count: Annotated[int, typer.Option("-n", min=1, help="How many recent ones.")] = 20,
    attributes: Annotated[
        bool, typer.Option("--attributes", "-a", help="Show what each span says.")
    ] = False,
    state: StateOption = DEFAULT_STATE,
) -> None:
    """Show where the time of recent requests went.

    Without an id, lists the latest traces that the local cluster has kept in its state
    directory; with one, draws it: a line a span, across processes, and how much of the time
    the spans account for. Nothing here holds texts, tokens or tensors.
    """
    from rich.console import Console

    from deploy.cli.trace_tables import recent_table, summary, waterfall
    from deploy.traces.client import FOLDER
    from deploy.traces.spans import read_latest, read_spans
    from deploy.traces.tree import traces_of

    directory = state / FOLDER
    if not directory.is_dir():
        fail(f"no traces in {directory}", "orchid up keeps them there; --state names another one")
    console = Console()
    if which.lower() == RECENT:
        found = traces_of(read_latest(directory))
        if not found:
            fail("no trace yet", "orchid infer and orchid generate leave one each")
        if slow:
            found = [each for each in found if _is_slow(each)]
            if not found:
                console.print(f"none of the kept traces failed or took {_SLOW_MS:g} ms")
                return
        console.print(recent_table(found[:count]), highlight=False)
        return
    wanted = which.lower()
    found = traces_of(read_spans(directory, wanted))
    if not found:
        fail(f"no trace {which} in {directory}", "orchid trace recent lists those that are kept")
    if len(found) > 1:
        fail(f"{len(found)} traces begin with {which}", "give more digits")
    console.print(summary(found[0]), highlight=False)
    table = waterfall(found[0], console.width, attributes=attributes)
    console.print(table, highlight=False)


def _is_slow(trace: Trace) -> bool:
    return bool(trace.fault) or trace.root.took_ns >= _SLOW_MS * 1e6
