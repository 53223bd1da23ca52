"""`orchid models load` and `unload`: models of a running cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from deploy.cli.output import (
    DEFAULT_STATE,
    AddressOption,
    StateOption,
    chosen_address,
    connection_remedy,
    fail,
)

if TYPE_CHECKING:
    from pathlib import Path

NameArgument = Annotated[str, typer.Argument(help="Model of the workers' repositories.")]


def load(
    name: NameArgument, address: AddressOption = "", state: StateOption = DEFAULT_STATE
) -> None:
    """Load a model on every worker of a running cluster that has it; returns when it is ready.

    For a model that was built or imported after the workers started. One that is loaded in
    another form must be unloaded first.
    """
    _act(name, address, state, "load")
    typer.echo(f"model {name} is ready")


def unload(
    name: NameArgument, address: AddressOption = "", state: StateOption = DEFAULT_STATE
) -> None:
    """Take a model off every worker of a running cluster; its files stay."""
    _act(name, address, state, "unload")
    typer.echo(f"model {name} is unloaded")


def _act(name: str, address: str, state: Path, verb: str) -> None:
    from rich.console import Console

    from deploy.fleet import AccessRefused, FleetError, load_model, unload_model

    target = chosen_address(address, state)
    try:
        with Console(stderr=True).status(f"{verb}ing {name}"):
            load_model(target, name) if verb == "load" else unload_model(target, name)
    except FleetError as error:
        usual = "orchid status shows what runs, orchid models list what a repository has"
        if isinstance(error, AccessRefused):
            usual = "ORCHID_TOKEN or --token says who calls; loading takes the role operate"
        fail(str(error), connection_remedy(str(error), usual))
