"""The metrics that docs/operations.md lists."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs" / "operations.md"
_ROW = re.compile(r"^\| `((?:orchid|process|target)_\w+)` \| (\w+) \|([^|]*)\|", re.MULTILINE)


def documented() -> dict[str, tuple[str, frozenset[str]]]:
    """Type and labels of each metric of the tables."""
    found = {}
    for name, kind, labels in _ROW.findall(DOCS.read_text()):
        assert name not in found, f"{name} is listed twice"
        words = re.sub(r"workers:|;", ",", labels).split(",")
        found[name] = kind, frozenset(word.strip() for word in words if word.strip())
    return found
