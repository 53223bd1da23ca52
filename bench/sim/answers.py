"""What variants really answered to the items of a labelled set, for simulated requests.

A request of the simulation stands for one item, whichever variants run it: so the confidences
of two variants, and which of them is right, belong together as they did.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Answers:
    """Lengths in tokens, labels, and every variant's logits [N, classes] of N items."""

    tokens: NDArray[np.int64]
    labels: NDArray[np.int64]
    logits: Mapping[str, NDArray[np.float64]]
    _rows: dict[str, list[list[float]]] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        count = len(self.labels)
        if not count or len(self.tokens) != count:
            raise ValueError(f"expected as many lengths as labels, some, got {count} labels")
        for name, rows in self.logits.items():
            if rows.ndim != 2 or len(rows) != count:
                raise ValueError(f"{name}: expected logits of {count} items, got {rows.shape}")

    def __len__(self) -> int:
        return len(self.labels)

    def row(self, variant: str, item: int) -> list[float]:
        """The logits of one variant for one item; KeyError for a variant that was not recorded."""
        rows = self._rows.get(variant)
        if rows is None:
            rows = self._rows[variant] = self.logits[variant].tolist()
        return rows[item]

    def taken(self, items: Sequence[int]) -> Answers:
        """Those of these items, in their order."""
        chosen = np.array(items, dtype=np.int64)
        logits = {name: rows[chosen] for name, rows in self.logits.items()}
        return Answers(self.tokens[chosen], self.labels[chosen], logits)

    def right(self, variants: Sequence[str]) -> NDArray[np.bool_]:
        """Which items each of these variants answered right, [N, variants].

        ValueError names a variant of which no answers were recorded.
        """
        missing = sorted(set(variants) - set(self.logits))
        if missing:
            raise ValueError(f"no answers of {missing[0]} were recorded")
        columns = [self.logits[name].argmax(axis=1) == self.labels for name in variants]
        return np.stack(columns, axis=1)


def read_answers(path: Path) -> Answers:
    """Read `profiles/confidences-<population>.npz` of a model's folder.

    Raises OSError and ValueError for what is no such file.
    """
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        tokens, labels = arrays.pop("tokens"), arrays.pop("labels")
    except (KeyError, EOFError) as error:
        raise ValueError(f"{path} holds no recorded answers: {error!r}") from None
    logits = {name: array.astype(np.float64) for name, array in arrays.items()}
    return Answers(tokens.astype(np.int64), labels.astype(np.int64), logits)
