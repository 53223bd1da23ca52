"""How a collector is named in configuration. Pure."""

from __future__ import annotations

SECURE = "https://"
_SCHEMES = (SECURE, "http://")


def endpoint_fault(endpoint: str) -> str:
    """Why this names no collector; empty when it does, or is empty itself.

    Accepted are `host:port`, `http://host:port`, and `https://host:port` for TLS.
    """
    if not endpoint:
        return ""
    scheme = next((each for each in _SCHEMES if endpoint.startswith(each)), "")
    host, _, port = endpoint.removeprefix(scheme).rstrip("/").rpartition(":")
    if host and "/" not in host and port.isdecimal() and 0 < int(port) <= 65535:
        return ""
    return f"must be host:port, with http:// or https:// before it or not, got {endpoint!r}"
