"""How long a step takes: a linear model from the profile, corrected by what steps took."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from worker.scheduling.records import StepPart

# What a step says fades by this with each one after it: some seconds are remembered.
_MEMORY: Final = 0.995
# The profile counts as so many steps in the beginning, and always as so many for what no step
# tells apart.
_PRIOR: Final = 10.0
_RIDGE: Final = 1.0
# How fast the whole follows what the corrected terms do not explain.
_GAIN: Final = 0.08
# A stalled step counts as at most so many times what was expected.
_STALLED: Final = 2.0
_LEAST: Final = 0.25
_MOST: Final = 4.0
_LEAST_DRIFT: Final = 0.5
_MOST_DRIFT: Final = 2.0
_TERMS: Final = 4


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


class StepCorrections(NamedTuple):
    """Factors on the four terms of a `StepCost`."""

    step: float
    prefill: float
    sequence: float
    cached: float


class CorrectedCost:
    """A `StepCost` whose four terms are corrected by the steps that ran. Not thread-safe.

    - Each term has a factor: exponentially weighted least squares of the relative error, drawn
      towards the common level where steps do not tell terms apart, one pass of coordinate
      descent a step. Factors stay within 0.25 and 4.
    - What that leaves in the last steps, a machine that has become slower for one, moves a
      factor on the whole, within 0.5 and 2.
    """

    def __init__(self, cost: StepCost) -> None:
        self.cost = cost
        self._factors = [1.0] * _TERMS
        self._level = 1.0
        self._drift = 1.0
        # Moments of the terms' shares in steps, and of shares with ratios: weighted sums.
        self._shares = [[_PRIOR * (i == j) for j in range(_TERMS)] for i in range(_TERMS)]
        self._ratios = [_PRIOR] * _TERMS
        self._step_ns = 1e3 * cost.step_us
        self._prefill_ns = 1e3 * cost.prefill_us_per_token
        self._sequence_ns = 1e3 * cost.sequence_us
        self._cached_ns = 1e3 * cost.cached_us_per_token

    @property
    def corrections(self) -> StepCorrections:
        """The factors on the terms that predictions are made with."""
        step, prefill, sequence, cached = self._factors
        drift = self._drift
        return StepCorrections(drift * step, drift * prefill, drift * sequence, drift * cached)

    @property
    def token_ns(self) -> float:
        """Predicted time of one more prompt token in a step."""
        return self._prefill_ns

    def predict_ns(self, load: StepLoad) -> float:
        """Predicted time of a step."""
        return self._prefill_ns * load.chunk_tokens + self.rest_ns(load.decoding, load.cached)

    def rest_ns(self, decoding: int, cached: int) -> float:
        """Predicted time of a step without prompt tokens."""
        return self._step_ns + self._sequence_ns * decoding + self._cached_ns * cached

    def join_ns(self, tokens: int) -> float:
        """What one more sequence of so many tokens adds to a step when it decodes."""
        return self._sequence_ns + self._cached_ns * tokens

    def learn(self, load: StepLoad, took_ns: int) -> None:
        """Correct by one step; a time that is not above 0 teaches nothing."""
        if took_ns <= 0:
            return
        cost = self.cost
        terms = [
            1e3 * cost.step_us,
            1e3 * cost.prefill_us_per_token * load.chunk_tokens,
            1e3 * cost.sequence_us * load.decoding,
            1e3 * cost.cached_us_per_token * load.cached,
        ]
        nominal = sum(terms)
        if nominal <= 0.0:
            return
        shares = [term / nominal for term in terms]
        expected = self.predict_ns(load) / nominal
        ratio = min(took_ns / nominal, _STALLED * expected)
        self._regress(shares, ratio)
        explained = sum([f * s for f, s in zip(self._factors, shares, strict=True)])
        drift = self._drift + _GAIN * (ratio / explained - self._drift)
        self._drift = min(_MOST_DRIFT, max(_LEAST_DRIFT, drift))
        step, prefill, sequence, cached = self.corrections
        self._step_ns = 1e3 * cost.step_us * step
        self._prefill_ns = 1e3 * cost.prefill_us_per_token * prefill
        self._sequence_ns = 1e3 * cost.sequence_us * sequence
        self._cached_ns = 1e3 * cost.cached_us_per_token * cached

    def _regress(self, shares: list[float], ratio: float) -> None:
        """One more step in the moments, and one pass over the factors."""
        self._level += (1.0 - _MEMORY) * (ratio - self._level)
        factors = self._factors
        for i in range(_TERMS):
            row = self._shares[i]
            for j in range(_TERMS):
                row[j] = _MEMORY * row[j] + shares[i] * shares[j]
            self._ratios[i] = _MEMORY * self._ratios[i] + shares[i] * ratio
        for i in range(_TERMS):
            row = self._shares[i]
            others = sum([row[j] * factors[j] for j in range(_TERMS)]) - row[i] * factors[i]
            wanted = self._ratios[i] - others + _RIDGE * self._level
            factors[i] = min(_MOST, max(_LEAST, wanted / (row[i] + _RIDGE)))
