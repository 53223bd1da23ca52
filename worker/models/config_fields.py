"""Numbers that a checkpoint's config says of it, each checked when it is read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from worker.models.errors import CheckpointError
from worker.models.manifest import LARGEST

# Of a value that is none of what was expected.
_SHOWN = 80


class ConfigFields:
    """The named values of one file, as ``config.json`` or the metadata of a GGUF file.

    Every method raises CheckpointError with the file, the key, what was expected and what came.
    """

    def __init__(self, document: Mapping[str, Any], *, file: str, remedy: str) -> None:
        self._document = document
        self._file = file
        self._remedy = remedy

    def size(self, key: str, default: int | None = None, *, least: int = 1) -> int:
        """Return a whole number of ``least`` to LARGEST; ``default`` if it is absent or null."""
        value = self._document.get(key)
        if value is None and default is not None:
            return default
        # In Python, and not in JSON, true is a number.
        if isinstance(value, int) and not isinstance(value, bool) and least <= value <= LARGEST:
            return value
        raise self._fault(key, f"a whole number of {least} to {LARGEST}")

    def positive(self, key: str, default: float | None = None) -> float:
        """Return a finite number above 0; ``default`` if it is absent or null."""
        value = self._document.get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, int | float) and not isinstance(value, bool):
            # A whole number may be larger than any other one.
            with suppress(OverflowError):
                if 0.0 < float(value) < math.inf:
                    return float(value)
        raise self._fault(key, "a number above 0")

    def section(self, key: str) -> Mapping[str, Any]:
        """Return an object of further values; an empty one if it is absent or null."""
        value = self._document.get(key)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise self._fault(key, "an object")
        return value

    def _fault(self, key: str, expected: str) -> CheckpointError:
        value = self._document.get(key)
        got = "nothing" if value is None else repr(value)[:_SHOWN]
        return CheckpointError(f"{key!r} in {self._file} to be {expected}", got, self._remedy)
