"""Tokens made more or less likely than the model has them, before one is chosen."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from worker.errors import InvalidInput

Row = NDArray[np.float32]

# As the control plane has them.
MOST_REPETITION = 10.0
# Below this, logits divided by it could leave the range of single precision.
LEAST_REPETITION = 0.01
MOST_PENALTY = 2.0
MOST_BIAS = 100.0
MOST_BIASES = 1024


@dataclass(frozen=True, slots=True)
class PenaltyParameters:
    """What a caller asks; as it is, nothing.

    `bias` is added to the logits of token ids. `repetition` 0 and 1 change nothing. `presence`
    and `frequency` are taken off the logits of tokens of the answer so far, once and each time.
    """

    repetition: float = 0.0
    presence: float = 0.0
    frequency: float = 0.0
    bias: tuple[tuple[int, float], ...] = ()

    def check(self) -> None:
        """Raises InvalidInput naming the parameter, what came and what is accepted."""
        if self.repetition:
            check_range("repetition_penalty", self.repetition, LEAST_REPETITION, MOST_REPETITION)
        check_range("presence_penalty", self.presence, -MOST_PENALTY, MOST_PENALTY)
        check_range("frequency_penalty", self.frequency, -MOST_PENALTY, MOST_PENALTY)
        if len(self.bias) > MOST_BIASES:
            raise InvalidInput(
                f"logit_bias has {len(self.bias)}; accepted is at most {MOST_BIASES}"
            )
        for token, value in self.bias:
            check_range(f"logit_bias of token {token}", value, -MOST_BIAS, MOST_BIAS)

    @property
    def idle(self) -> bool:
        """Whether nothing is asked."""
        counts = self.presence or self.frequency
        return not (counts or self.bias or self.repetition not in (0.0, 1.0))


class Penalties:
    """Those of one sequence: remembers what occurred. Not thread-safe.

    `occurred` are the tokens that repetition concerns from the start, the prompt's.
    """

    def __init__(
        self, parameters: PenaltyParameters, *, vocabulary: int, occurred: Iterable[int] = ()
    ) -> None:
        self._parameters = parameters
        self._occurred: NDArray[np.bool_] | None = None
        if parameters.repetition not in (0.0, 1.0):
            self._occurred = np.zeros(vocabulary, np.bool_)
            self._occurred[list(occurred)] = True
        self._counts: dict[int, int] | None = None
        if parameters.presence or parameters.frequency:
            self._counts = {}
        self._biased = _ids([token for token, _ in parameters.bias])
        self._bias = np.array([value for _, value in parameters.bias], np.float32)

    def applied(self, logits: Row) -> Row:
        """A copy of a row of logits [vocabulary]: biased, then penalised."""
        row = logits.copy()
        row[self._biased] += self._bias
        if self._occurred is not None:
            repeated(row, self._occurred, self._parameters.repetition)
        if self._counts:
            counts = np.array(list(self._counts.values()), np.float32)
            presence, frequency = self._parameters.presence, self._parameters.frequency
            row[_ids(list(self._counts))] -= np.float32(presence) + np.float32(frequency) * counts
        return row

    def chose(self, token: int) -> None:
        """This token was chosen."""
        if self._occurred is not None:
            self._occurred[token] = True
        if self._counts is not None:
            self._counts[token] = self._counts.get(token, 0) + 1


def repeated(row: Row, occurred: NDArray[np.bool_], penalty: float) -> None:
    """Makes tokens that occurred less likely, in place: their logits are divided, or multiplied
    if negative (Keskar et al. 2019)."""
    values = row[occurred]
    row[occurred] = np.where(values > 0, values / penalty, values * penalty)


def check_range(name: str, value: float, low: float, high: float) -> None:
    """Raises InvalidInput when a parameter is outside of what is accepted, or no number."""
    if not low <= value <= high:
        raise InvalidInput(f"{name} is {value:g}; accepted is {low:g} to {high:g}")


def _ids(tokens: Sequence[int]) -> NDArray[np.int64]:
    return np.array(tokens, np.int64)
