"""How errors quote what a caller sent: printable, bounded, never a whole prompt."""

from __future__ import annotations

from collections.abc import Iterable


def shown(value: str, limit: int = 80) -> str:
    """A caller's own string as an error may quote it: printable ASCII, quoted, bounded."""
    text = ascii(value[:limit])
    return text if len(value) <= limit else f"{text} (cut, {len(value)} characters)"


def listed(names: Iterable[str], limit: int = 20) -> str:
    """Names that are accepted, for an error message: sorted, quoted, bounded."""
    ordered = sorted(names)
    if not ordered:
        return "none"
    text = ", ".join(shown(name) for name in ordered[:limit])
    return text if len(ordered) <= limit else f"{text} and {len(ordered) - limit} more"


def counted(count: int, noun: str) -> str:
    """A number of things: "1 token", "2 tokens"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
