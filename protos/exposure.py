"""Whether others can reach an address, and that nothing is plain text there unless it is wanted."""

from __future__ import annotations

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
