"""Which version this is."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def own_version() -> str:
    """Version of the installed package, "unknown" when it runs from a bare checkout."""
    try:
        return version("orchid")
    except PackageNotFoundError:
        return "unknown"
