"""What requests of a kind were seen to need: fading means, of which only so many are kept."""

from __future__ import annotations

from typing import TypeAlias

Key: TypeAlias = tuple[str, ...]

_GAIN = 0.1
_MOST = 512


class FadingMeans:
    """Means in which every value counts a tenth less than the one after it.

    The kind that was not seen for longest gives way to a new one.
    """

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._means: dict[Key, float] = {}

    def __len__(self) -> int:
        return len(self._means)

    def mean(self, key: Key, otherwise: float) -> float:
        """The mean of a kind, or this where there is none yet."""
        return self._means.get(key, otherwise)

    def observe(self, key: Key, value: float) -> None:
        """One more value of a kind."""
        before = self._means.pop(key, None)
        if before is None and len(self._means) >= self._most:
            del self._means[next(iter(self._means))]
        # The order of keys is that of their last values.
        self._means[key] = value if before is None else before + _GAIN * (value - before)
