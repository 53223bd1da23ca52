"""How long a step takes: a linear model from the profile, corrected by what steps took."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from worker.scheduling.records import StepPart

_GAIN = 0.08
_LEAST, _MOST = 0.25, 4.0


class StepLoad(NamedTuple):
    """What a step is made of.

    `chunk_tokens` are tokens of prompts (and of preempted sequences, computed again),
    `decoding` sequences with a single token, `cached` tokens before those of all parts.
    """

    chunk_tokens: int
    decoding: int
    cached: int


def load_of(parts: Iterable[StepPart]) -> StepLoad:
    """The load of a step's parts: one token with logits and a past counts as decoding."""
    chunk = decoding = cached = 0
    for part in parts:
        count = len(part.tokens)
        if count == 1 and part.past:
            decoding += 1
        else:
            chunk += count
        cached += part.past
    return StepLoad(chunk, decoding, cached)


@dataclass(frozen=True, slots=True)
class StepCost:
    """Fitted cost of a step in us, and the relative spread `sigma` of measured over predicted.

    step_us + prefill_us_per_token * chunk tokens + sequence_us * decoding sequences
    + cached_us_per_token * tokens attended to.
    """

    step_us: float
    prefill_us_per_token: float
    sequence_us: float
    cached_us_per_token: float
    sigma: float = 0.1

    def __post_init__(self) -> None:
        for name in ("step_us", "prefill_us_per_token", "sequence_us", "cached_us_per_token"):
            if getattr(self, name) < 0.0:
                raise ValueError(f"{name} is {getattr(self, name)}; accepted is at least 0")
        if self.step_us + self.sequence_us <= 0.0 or self.prefill_us_per_token <= 0.0:
            raise ValueError("a step and a prompt's token must cost something")

    def prefill_ns(self, load: StepLoad) -> float:
        """The part that prompt tokens take."""
        return 1e3 * self.prefill_us_per_token * load.chunk_tokens

    def decode_ns(self, load: StepLoad) -> float:
        """The rest: the step itself, decoding sequences and what is attended to."""
        return 1e3 * (
            self.step_us + self.sequence_us * load.decoding + self.cached_us_per_token * load.cached
        )


class CorrectedCost:
    """A `StepCost` with one correction for prompt tokens and one for the rest.

    Normalised least mean squares on the two parts: an error goes to the part that made most
    of the step. Corrections stay within 0.25 and 4. Not thread-safe.
    """

    def __init__(self, cost: StepCost) -> None:
        self.cost = cost
        self._prefill = 1.0
        self._decode = 1.0

    @property
    def corrections(self) -> tuple[float, float]:
        """Factors on prompt tokens and on the rest."""
        return self._prefill, self._decode

    @property
    def token_ns(self) -> float:
        """Predicted time of one more prompt token in a step."""
        return self._prefill * 1e3 * self.cost.prefill_us_per_token

    def predict_ns(self, load: StepLoad) -> float:
        """Predicted time of a step."""
        return self._prefill * self.cost.prefill_ns(load) + self._decode * self.cost.decode_ns(load)

    def rest_ns(self, decoding: int, cached: int) -> float:
        """Predicted time of a step without prompt tokens."""
        return self._decode * self.cost.decode_ns(StepLoad(0, decoding, cached))

    def join_ns(self, tokens: int) -> float:
        """What one more sequence of so many tokens adds to a step when it decodes."""
        return self.rest_ns(1, tokens) - self.rest_ns(0, 0)

    def learn(self, load: StepLoad, took_ns: int) -> None:
        """Correct by one step; a time that is not above 0 teaches nothing."""
        if took_ns <= 0:
            return
        prefill, rest = self.cost.prefill_ns(load), self.cost.decode_ns(load)
        error = took_ns - self._prefill * prefill - self._decode * rest
        # One stalled step must not pass for a slow machine.
        error = min(error, prefill + rest)
        scale = _GAIN * error / (prefill * prefill + rest * rest)
        self._prefill = min(_MOST, max(_LEAST, self._prefill + scale * prefill))
        self._decode = min(_MOST, max(_LEAST, self._decode + scale * rest))
