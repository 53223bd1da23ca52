"""What the commands share: consoles, and ending with a fault and its remedy."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

if TYPE_CHECKING:
    from worker.models.errors import ModelError

# What a transport says when one side speaks TLS and the other does not, or not with this one.
_BROKEN = ("socket closed", "connection reset", "handshake", "certificate", "tls")
DEFAULT_STATE = Path(".orchid")
# What the fields of a request hold; beyond it protobuf raises.
MOST_COUNT = 2**32 - 1
MOST_SEED = 2**64 - 1
# A day, as control planes accept.
MOST_DEADLINE_MS = 86_400_000

StateOption = Annotated[
    Path,
    typer.Option(
        "--state", help="Directory of the local cluster: record, logs.", show_default=True
    ),
]
AddressOption = Annotated[
    str,
    typer.Option(
        "--address",
        help="Control plane, host:port. Default: the running local cluster, else 127.0.0.1:8900.",
        show_default=False,
    ),
]
ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        envvar="ORCHID_CONFIG",
        help="YAML file with sections `controlplane:`, `worker:` and `decode:`; "
        "see deploy/orchid.yaml.",
        exists=True,
        dir_okay=False,
    ),
]
InsecureOption = Annotated[
    bool,
    typer.Option(
        "--insecure", help="Serve and dial other machines in plain text: only in a trusted network."
    ),
]
TraceOption = Annotated[
    bool,
    typer.Option(
        "--trace", help="Tell the trace's id on standard error; `orchid trace ID` shows it."
    ),
]
JsonOption = Annotated[
    Path | None,
    typer.Option("--json", help="Write host, commit, command, all points and a flat summary here."),
]


def chosen_address(address: str, state: Path) -> str:
    """The control plane to ask: the one named, else that of the local cluster, else the usual one.

    Ends with code 1 when no cluster runs from a state directory that was asked for.
    """
    from deploy.state import DEFAULT_ADDRESS, running_address

    found = address or running_address(state)
    if not found and state != DEFAULT_STATE:
        fail(f"no cluster runs from {state}", "--address names a control plane")
    return found or DEFAULT_ADDRESS


def printable(text: str) -> str:
    """A name that others chose, with what would steer a terminal or a table written out."""
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text
    )


def warn(message: str) -> None:
    """Prints to stderr what is wrong but ends nothing."""
    from rich.console import Console

    text = f"[bold yellow]warning:[/] {_escape(message)}"
    Console(stderr=True).print(text, highlight=False, soft_wrap=True)


def fail(message: str, remedy: str = "") -> NoReturn:
    """Prints a fault (and what to do) to stderr and exits with code 1."""
    from rich.console import Console

    console = Console(stderr=True)
    # Lines stay whole, as programs and `grep` want them; a terminal wraps by itself.
    console.print(f"[bold red]error:[/] {_escape(message)}", highlight=False, soft_wrap=True)
    if remedy:
        console.print(f"[bold]remedy:[/] {_escape(remedy)}", highlight=False, soft_wrap=True)
    raise typer.Exit(1)


def fail_for_model(error: ModelError, remedy: str = "") -> NoReturn:
    """Ends as `fail` for what is wrong with a model; `remedy` instead of its own."""
    fail(f"expected {error.expected}; got {error.got}", remedy or error.remedy)


def connection_remedy(text: str, otherwise: str) -> str:
    """What may help against a fault of a connection: credentials where it broke in a handshake."""
    if any(word in text.lower() for word in _BROKEN):
        return (
            "the port may speak TLS: --tls-ca, and --tls-cert with --tls-key where it asks for a "
            "certificate, or the ORCHID_TLS_ variables (docs/security.md)"
        )
    return otherwise


def _escape(text: str) -> str:
    from rich.markup import escape

    return escape(text)
