"""`orchid records`: what requests were estimated to need and what they took."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deploy.cli.output import DEFAULT_STATE, StateOption, fail

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator

_USUAL = ("tenant", "class", "variant")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}

app = typer.Typer(help="Show, sum and export the records of requests.", no_args_is_help=False)

FileOption = Annotated[
    Path | None,
    typer.Option("--file", help="The store. Default: the local cluster's, in its state directory."),
]
SinceOption = Annotated[
    str, typer.Option("--since", help="Only requests of the last 90s, 10m, 2h or 7d.")
]


@app.callback(invoke_without_command=True)
def records(
    context: typer.Context,
    by: Annotated[
        str,
        typer.Option(
            help="Sum by these together, by comma: lane, model, tenant, class, privacy, variant, "
            "outcome, reason, worker. Default: a table each by tenant, class and variant."
        ),
    ] = "",
    since: SinceOption = "",
    json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
    file: FileOption = None,
    state: StateOption = DEFAULT_STATE,
) -> None:
    """Sum the records of requests: what answers in time cost, estimated and measured CPU time.

    A control plane that is told where (`records.file`; `orchid up` uses its state directory) keeps
    a record of each request of both lanes: shapes, names and numbers, never texts or tokens.
    """
    if context.invoked_subcommand is not None:
        return
    from deploy.records.summary import GROUPS, spending, summarise

    wanted = [name.strip() for name in by.split(",") if name.strip()]
    unknown = [name for name in wanted if name not in GROUPS]
    if unknown:
        fail(f"nothing is recorded by {unknown[0]!r}", f"--by takes {', '.join(GROUPS)}")
    since_us = _since_us(since)
    tables = [wanted] if wanted else [[name] for name in _USUAL]
    with _store(file, state) as database:
        (whole, *_) = summarise(database, since_us=since_us)
        found = [(each, summarise(database, each, since_us)) for each in tables]
        spent = spending(database)
    if json:
        import json as encoder
        from dataclasses import asdict

        document = {
            "total": whole.as_point(),
            "by": {",".join(names): [s.as_point() for s in sums] for names, sums in found},
            "workers": asdict(spent),
        }
        typer.echo(encoder.dumps(document, indent=1))
        return
    from rich.console import Console

    from deploy.cli.record_tables import spending_lines, sums_table, total_line

    console = Console()
    console.print(total_line(whole), highlight=False)
    for line in spending_lines(spent, whole, everything=not since_us):
        console.print(line, highlight=False)
    for names, sums in found:
        console.print()
        console.print(sums_table(names, sums, console.width), highlight=False)


@app.command("export")
def export(
    path: Annotated[Path, typer.Argument(help="FILE.jsonl or FILE.csv.", metavar="FILE")],
    trace: Annotated[
        bool,
        typer.Option(
            "--trace", help="As a trace of shapes (CSV) that `orchid sim --trace` and others play."
        ),
    ] = False,
    model: Annotated[str, typer.Option(help="Of a trace: only this model.")] = "",
    resume: Annotated[
        bool, typer.Option("--resume", help="Add what is newer than the last record in the file.")
    ] = False,
    since: SinceOption = "",
    file: FileOption = None,
    state: StateOption = DEFAULT_STATE,
) -> None:
    """Write the records to a file, a line each; the columns are in docs/records.md."""
    from deploy.records.export import export_records, export_trace

    if trace and resume:
        fail("a trace cannot be resumed", "leave --resume out: it is written anew")
    if path.exists() and not resume and not trace:
        fail(f"{path} is there already", "--resume adds to it; or name another file")
    since_us = _since_us(since)
    try:
        with _store(file, state) as database:
            if trace:
                count = export_trace(database, path, model=model, since_us=since_us)
            else:
                count = export_records(database, path, since_us=since_us, resume=resume)
    except OSError as error:
        fail(f"cannot write {path}: {error.strerror or error}")
    typer.echo(f"written: {path}, {count} {'requests' if trace else 'records'}")
    if trace:
        typer.echo(f"play it: orchid sim --trace {path} --profile PROFILE (docs/simulator.md)")


@contextmanager
def _store(file: Path | None, state: Path) -> Iterator[sqlite3.Connection]:
    """The store to read; ends with code 1 when it cannot be."""
    from deploy.records.reading import RecordsError, reading
    from deploy.records.settings import FILE

    try:
        with reading(file if file is not None else state / FILE) as database:
            yield database
    except RecordsError as error:
        fail(str(error), error.remedy)


def _since_us(text: str) -> int:
    """A time since 1970 in us, 0 for all; ends with code 1 when it is not one."""
    if not text:
        return 0
    from datetime import UTC, datetime

    number, unit = text[:-1], text[-1:]
    if unit not in _UNITS or not number.isdecimal():
        fail(f"--since {text!r} is no time", "a number and s, m, h or d: 90s, 10m, 2h, 7d")
    now_s = datetime.now(UTC).timestamp()
    # Nothing is older than 1970, and what goes further back is all.
    return max(0, int(now_s * 1e6) - int(number) * _UNITS[unit] * 1_000_000)
