"""`orchid infer`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from deploy.cli.output import (
    DEFAULT_STATE,
    MOST_DEADLINE_MS,
    AddressOption,
    StateOption,
    TraceOption,
    chosen_address,
    connection_remedy,
    fail,
    printable,
)

if TYPE_CHECKING:
    from deploy.ask import Reply


def infer(
    model: Annotated[str, typer.Argument(help="Model to ask, e.g. sentiment.")],
    texts: Annotated[list[str], typer.Argument(help="One or more texts.")],
    deadline_ms: Annotated[
        int,
        typer.Option(
            min=0,
            max=MOST_DEADLINE_MS,
            help="Time the answer is worth waiting for; 0: the default.",
        ),
    ] = 0,
    request_class: Annotated[
        str, typer.Option("--class", help="Request class of the configuration.")
    ] = "",
    tenant: Annotated[str, typer.Option(help="Who is charged.")] = "",
    variant: Annotated[str, typer.Option(help="Answer with this variant or not at all.")] = "",
    prohibit: Annotated[
        list[str] | None, typer.Option(help="A variant that may not answer; can be repeated.")
    ] = None,
    minimum_quality: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Lowest measured quality that may answer.")
    ] = 0.0,
    json: Annotated[bool, typer.Option("--json", help="Print whole responses as JSON.")] = False,
    trace: TraceOption = False,
    address: AddressOption = "",
    state: StateOption = DEFAULT_STATE,
) -> None:
    """Ask a model about texts, each text one request, all at once.

    Prints, in the order of the texts, label, score, the variant that answered, the times, and
    why that variant was chosen.
    Exits with 1 when a request got no answer.
    """
    from deploy.ask import Question, ask
    from deploy.channels import unreachable
    from deploy.cli.tracing import tell_trace, traced

    question = Question(
        model=model,
        deadline_ms=deadline_ms,
        request_class=request_class,
        tenant=tenant,
        variant=variant,
        prohibited=tuple(prohibit or ()),
        minimum_quality=minimum_quality,
    )
    target = chosen_address(address, state)
    with traced("orchid infer", state, target) as recorder:
        replies = ask(target, question, texts, recorder)
        failed = [reply for reply in replies if reply.error]
        if json:
            import json as encoder

            told = [{**reply.as_json(), "trace_id": recorder.id} for reply in replies]
            typer.echo(encoder.dumps(told, indent=1))
        elif len(failed) < len(replies):
            _print(replies)
        elif failed[0].code != "UNAVAILABLE":
            _print_errors(failed)
        if trace:
            tell_trace(recorder.id)
        if failed and all(reply.code == "UNAVAILABLE" for reply in failed):
            reached = "failed to connect" not in failed[0].error
            remedy = "try again shortly; orchid status" if reached else "orchid up starts a cluster"
            text = failed[0].error
            fail(unreachable(target, text), connection_remedy(text, remedy))
        if failed:
            raise typer.Exit(1)


def _print(replies: list[Reply]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold dim")
    table.add_column("label", no_wrap=True)
    table.add_column("score", justify="right")
    table.add_column("variant", no_wrap=True)
    table.add_column("queue", justify="right")
    table.add_column("run", justify="right")
    table.add_column("total ms", justify="right", no_wrap=True)
    table.add_column("why", overflow="fold")
    for reply in replies:
        if reply.error:
            told = Text(printable(reply.error))
            table.add_row(Text(reply.code, style="red"), "", "", "", "", "", told)
            continue
        why = reply.reason + (" (approximation)" if reply.approximation else "")
        times = (f"{ms:.1f}" for ms in (reply.queue_ms, reply.execute_ms, reply.total_ms))
        label, variant = (Text(printable(name)) for name in (reply.label, reply.variant))
        table.add_row(label, f"{reply.score:.3f}", variant, *times, why)
    Console().print(table, highlight=False)


def _print_errors(failed: list[Reply]) -> None:
    """When no text was answered: each reason once, at the terminal's whole width."""
    from rich.console import Console
    from rich.text import Text

    for code, error in dict.fromkeys((reply.code, reply.error) for reply in failed):
        count = sum((reply.code, reply.error) == (code, error) for reply in failed)
        times = f" ({count} texts)" if count > 1 else ""
        Console().print(Text.assemble((code, "red"), f"{times} {error}"))
