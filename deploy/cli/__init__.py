"""The `orchid` command."""

from __future__ import annotations

import inspect
from typing import Annotated

import typer

from deploy.cli import models
from deploy.cli import records as records_commands
from deploy.cli.access import reaching
from deploy.cli.bench import app as bench_app
from deploy.cli.capacity import capacity
from deploy.cli.chat import chat
from deploy.cli.cluster import down, roll, status
from deploy.cli.demo import demo
from deploy.cli.doctor import doctor
from deploy.cli.drill import drill
from deploy.cli.generate import generate
from deploy.cli.infer import infer
from deploy.cli.plan import plan
from deploy.cli.processes import controlplane, worker
from deploy.cli.profile import profile
from deploy.cli.ready import ready
from deploy.cli.reload import reload
from deploy.cli.sim import sim
from deploy.cli.token import token
from deploy.cli.trace import trace
from deploy.cli.up import up

app = typer.Typer(
    name="orchid",
    help="Serves transformer models on plain CPUs, inside a deadline.",
    epilog="Start with `orchid doctor`, then `orchid models build` (text generation: with "
    "`--language-model`), `orchid up`, `orchid infer` or `orchid chat`.",
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    if version:
        from importlib.metadata import version as installed

        typer.echo(f"orchid {installed('orchid')}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


app.command("doctor")(doctor)
app.command("up")(reaching(up))
app.command("down")(down)
app.command("roll")(roll)
app.command("ready")(reaching(ready))
app.command("status")(reaching(status))
app.command("reload")(reaching(reload))
app.command("infer")(reaching(infer))
app.command("generate")(reaching(generate))
app.command("chat")(reaching(chat))
app.command("trace")(trace)
app.add_typer(records_commands.app, name="records")
app.add_typer(models.app, name="models")
app.command("profile")(profile)
app.command("plan")(plan)
app.command("capacity")(capacity)
app.command("controlplane")(controlplane)
app.command("worker")(worker)
app.command("token")(token)
app.command("demo")(demo)
app.command("drill")(drill)
app.command("sim")(sim)
app.add_typer(bench_app, name="bench")


def _flow(commands: typer.Typer) -> None:
    """Let help flow with the reader's window: line breaks within a paragraph are the source's."""
    for command in commands.registered_commands:
        text = command.help or inspect.getdoc(command.callback) or ""
        paragraphs = (" ".join(paragraph.split()) for paragraph in text.split("\n\n"))
        command.help = "\n\n".join(paragraphs)
    for group in commands.registered_groups:
        if group.typer_instance is not None:
            _flow(group.typer_instance)


_flow(app)


def main() -> None:
    """Runs the command line; the console script's entry."""
    app()
