"""Binding a server's port, with the reason when it cannot be had."""

from __future__ import annotations

import socket
from contextlib import closing

import grpc

from protos.listening import cannot_listen


def bind(
    server: grpc.aio.Server, listen: str, credentials: grpc.ServerCredentials | None = None
) -> str:
    """Binds `host:port` (port 0: any) or `unix:path`; returns the address that was bound.

    With `credentials` (keep them as long as the server) it is encrypted, else plain text.

    Raises OSError that names the address and why it cannot be had.
    """
    try:
        if credentials is None:
            port = server.add_insecure_port(listen)
        else:
            port = server.add_secure_port(listen, credentials)
    except RuntimeError as error:
        raise cannot_listen(listen, _reason(listen) or OSError(str(error))) from None
    return listen if listen.startswith("unix:") else f"{listen.rpartition(':')[0]}:{port}"


def _reason(listen: str) -> OSError | None:
    """What the system says to the same wish, which the transport keeps to itself."""
    host, _, port = listen.rpartition(":")
    if listen.startswith("unix:") or not port.isdigit():
        return None
    host = host.removeprefix("[").removesuffix("]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with closing(socket.socket(family, socket.SOCK_STREAM)) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind((host, int(port)))
    except OSError as error:
        return error
    return None
