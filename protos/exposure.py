"""Whether others can reach an address, and that nothing is plain text there unless it is wanted."""

from __future__ import annotations

from contextlib import suppress
from ipaddress import ip_address


def is_local(address: str) -> bool:
    """Whether only this machine can reach `host:port` or `unix:path`, by how it is spelt.

    No name is looked up: any but `localhost` is taken for one that others can reach.
    """
    if address.startswith("unix:"):
        return True
    host = address.rpartition(":")[0].removeprefix("[").removesuffix("]")
    if host.lower() == "localhost":
        return True
    try:
        return ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False


def is_loopback(host: str) -> bool:
    """Whether a Host header, with or without a port, is `localhost` or a loopback address."""
    name, _, port = host.rpartition(":")
    if not name or not port.isdecimal():
        # No port; the colons of an IPv6 address stand in brackets.
        name = host
    name = name.removeprefix("[").removesuffix("]").lower()
    if name == "localhost":
        return True
    with suppress(ValueError):
        return ip_address(name).is_loopback
    return False


def host_port_fault(address: str) -> str:
    """Why a listener of Python's own sockets cannot have this address; empty when it can.

    `unix:8000` would else be a host of that name, which passes for local.
    """
    if address.startswith("unix:"):
        return f"must be host:port, sockets of unix are not served here, got {address!r}"
    host, _, port = address.rpartition(":")
    if host and port.isdecimal() and int(port) <= 65535:
        return ""
    return f"must be host:port, got {address!r}"


def check_listener(key: str, address: str, *, encrypted: bool, insecure: bool) -> None:
    """ValueError when an address would be served to other machines in plain text unasked."""
    if address and not (encrypted or insecure or is_local(address)):
        raise ValueError(
            f"{key}: other machines can reach {address}, and nothing there would be encrypted: "
            "set tls (docs/security.md), or say insecure (insecure: true, --insecure) where the "
            "network is trusted"
        )


def check_peer(key: str, address: str, *, encrypted: bool, insecure: bool) -> None:
    """ValueError when another machine would be spoken to in plain text unasked."""
    if address and not (encrypted or insecure or is_local(address)):
        raise ValueError(
            f"{key}: {address} may be another machine, and nothing sent there would be encrypted: "
            "set tls.ca (docs/security.md), or say insecure (insecure: true, --insecure) where the "
            "network is trusted"
        )
