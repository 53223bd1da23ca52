"""The options of every command that calls a cluster: what it trusts, and who calls."""

from __future__ import annotations

import functools
import inspect
import os
import re
from collections.abc import Callable
from typing import Annotated, Any, TypeVar, cast

import typer

from deploy.access import CA, CERTIFICATE, KEY, SERVER_NAME, TOKEN

F = TypeVar("F", bound=Callable[..., Any])

_SURROGATE = re.compile("[\ud800-\udfff]")
_OPTIONS: dict[str, tuple[str, str, str]] = {
    "tls_ca": (
        CA,
        "--tls-ca",
        "Speak TLS with servers whose certificate these authorities signed.",
    ),
    "tls_cert": (CERTIFICATE, "--tls-cert", "Certificate to show to a server that asks for one."),
    "tls_key": (KEY, "--tls-key", "Its key."),
    "tls_server_name": (
        SERVER_NAME,
        "--tls-server-name",
        "Name in the server's certificate. Default: the host of its address.",
    ),
    "token": (TOKEN, "--token", "Bearer token that says who calls; better in the variable."),
}


def check_utf8(**named: object) -> None:
    """BadParameter, with its name, for a text that the terminal gave in another encoding."""
    for name, value in named.items():
        shown = name.replace("_", "-")
        several = enumerate(value, 1) if isinstance(value, list) else ()
        for label, text in ((shown, value), *((f"{shown} {n}", each) for n, each in several)):
            if isinstance(text, str) and _SURROGATE.search(text):
                raise typer.BadParameter(f"{label} is not UTF-8")


def reaching(command: F) -> F:
    """A command with these options; each also has a variable, which child processes inherit."""
    signature = inspect.signature(command, eval_str=True)
    added = {
        name: Annotated[
            str,
            typer.Option(option, envvar=variable, help=text, show_default=False, show_envvar=True),
        ]
        for name, (variable, option, text) in _OPTIONS.items()
    }

    @functools.wraps(command)
    def with_access(*arguments: Any, **named: Any) -> Any:
        from deploy.access import AccessError
        from deploy.cli.output import fail

        check_utf8(**named)
        for name, (variable, _, _) in _OPTIONS.items():
            if value := named.pop(name, ""):
                os.environ[variable] = value
        try:
            return command(*arguments, **named)
        except AccessError as error:
            fail(str(error))

    parameters = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default="", annotation=kind)
        for name, kind in added.items()
    ]
    with_access.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[*signature.parameters.values(), *parameters]
    )
    with_access.__annotations__ = {name: p.annotation for name, p in signature.parameters.items()}
    with_access.__annotations__ |= added
    return cast(F, with_access)
