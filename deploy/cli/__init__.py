"""The `orchid` command."""

from __future__ import annotations

import typer

from deploy.cli import bench, cluster, demo, doctor, infer, models, processes

app = typer.Typer(
    name="orchid",
    help="Serves transformer models on plain CPUs, inside a deadline.",
    epilog="Start with `orchid doctor`, then `orchid models build`, `orchid up`, `orchid infer`.",
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def _root(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


app.command("doctor")(doctor.doctor)
app.command("up")(cluster.up)
app.command("down")(cluster.down)
app.command("status")(cluster.status)
app.command("infer")(infer.infer)
app.add_typer(models.app, name="models")
app.command("controlplane")(processes.controlplane)
app.command("worker")(processes.worker)
app.command("demo")(demo.demo)
app.add_typer(bench.app, name="bench")


def main() -> None:
    """Runs the command line; the console script's entry."""
    app()
