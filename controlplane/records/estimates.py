"""What requests of a kind were seen to need: fading means, of which only so many are kept."""

from __future__ import annotations

from typing import TypeAlias

Key: TypeAlias = tuple[str, ...]

_GAIN = 0.1
_MOST = 512


class FadingMeans:
    """Means in which every value counts a tenth less than the one after it.

    The kind that came first gives way to a new one when there are too many.
    """

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        # Each mean in a list of its own, so that a value costs one look-up.
        self._means: dict[Key, list[float]] = {}

    def __len__(self) -> int:
        return len(self._means)

    def mean(self, key: Key, otherwise: float) -> float:
        """The mean of a kind, or this where there is none yet."""
        kept = self._means.get(key)
        return otherwise if kept is None else kept[0]

    def observe(self, key: Key, value: float) -> None:
        """One more value of a kind."""
        kept = self._means.get(key)
        if kept is not None:
            kept[0] += _GAIN * (value - kept[0])
            return
        if len(self._means) >= self._most:
            del self._means[next(iter(self._means))]
        self._means[key] = [value]
