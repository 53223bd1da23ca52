"""What to say when a port cannot be had: which one, why, and what to do."""

from __future__ import annotations

import errno
import os
import socket


def cannot_listen(listen: str, error: OSError, purpose: str = "") -> OSError:
    """The error of a server that cannot listen at `host:port` or `unix:path`.

    `error` is what the system said; `purpose` is what would have been served there, empty for the
    main service.
    """
    what = f"cannot listen for {purpose} on {listen}" if purpose else f"cannot listen on {listen}"
    # Names that are not found have numbers of their own.
    number = None if isinstance(error, socket.gaierror) else error.errno
    reason = os.strerror(number) if number else error.strerror or str(error)
    remedy = _remedy(number, listen.rpartition(":")[2])
    return OSError(f"{what}: {reason}{remedy and '; '}{remedy}")


def _remedy(number: int | None, port: str) -> str:
    if number == errno.EADDRINUSE:
        return (
            f"port {port} is taken by another process, which `ss -ltnp sport = :{port}` shows: "
            "stop that one, or listen on another port"
        )
    if number == errno.EACCES:
        return f"port {port} takes privileges: listen on a higher port"
    if number == errno.EADDRNOTAVAIL:
        return "this machine has no such address: listen on one that it has, or on 0.0.0.0"
    return ""
