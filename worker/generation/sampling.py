"""How the next token of a sequence is chosen from its logits. Pure arithmetic over one row.

A sequence has a sampler of its own with a generator of its own, so the same logits and seed give
the same tokens in whatever company the sequence is decoded.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from worker.errors import EngineFault, InvalidInput

Row = NDArray[np.float32]
Ids = NDArray[np.int64]
Doubles = NDArray[np.float64]

MOST_TEMPERATURE = 100.0
MOST_PENALTY = 100.0
# Tokens that are looked at before the whole vocabulary is put in order.
_FEW = 256


@dataclass(frozen=True, slots=True)
class SamplingParameters:
    """What a caller asks of the choice; the defaults are greedy decoding.

    A `temperature` of 0 is greedy. `top_k` 0 keeps all tokens, and so do `top_p` 0 and 1;
    `min_p` drops tokens below this share of the most likely one's probability.
    `repetition_penalty` 0 and 1 change nothing. `seed` None draws one.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 0.0
    min_p: float = 0.0
    repetition_penalty: float = 0.0
    seed: int | None = None

    def check(self) -> None:
        """Raises InvalidInput naming the parameter, what came and what is accepted."""
        _check("temperature", self.temperature, 0.0, MOST_TEMPERATURE)
        _check("top_p", self.top_p, 0.0, 1.0)
        _check("min_p", self.min_p, 0.0, 1.0)
        _check("repetition_penalty", self.repetition_penalty, 0.0, MOST_PENALTY)

    @property
    def greedy(self) -> bool:
        """Whether no chance is involved."""
        return self.temperature == 0.0 or self.top_k == 1


@dataclass(frozen=True, slots=True)
class Scored:
    """A token and the natural logarithm of its probability before penalty and filters."""

    token: int
    logprob: float


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen token; `scored` is set when log probabilities are wanted.

    `alternatives` are the most likely tokens, best first, the chosen one possibly among them.
    """

    token: int
    scored: Scored | None = None
    alternatives: tuple[Scored, ...] = ()


class Sampler:
    """Chooses the tokens of one sequence.

    `occurred` are the tokens that the repetition penalty concerns from the start, the prompt's.
    `logprobs` None leaves log probabilities out, else each choice carries so many alternatives.
    """

    def __init__(
        self,
        parameters: SamplingParameters,
        generator: np.random.Generator | None,
        *,
        vocabulary: int,
        occurred: Iterable[int] = (),
        logprobs: int | None = None,
    ) -> None:
        if not parameters.greedy and generator is None:
            raise ValueError("sampling needs a generator")
        self._parameters = parameters
        self._generator = generator
        self._logprobs = logprobs
        self._occurred: NDArray[np.bool_] | None = None
        if parameters.repetition_penalty not in (0.0, 1.0):
            self._occurred = np.zeros(vocabulary, np.bool_)
            self._occurred[list(occurred)] = True

    def choose(self, logits: Row) -> Choice:
        """The next token after a row of logits [vocabulary], which is left as it is.

        Raises EngineFault when the row holds what is no number.
        """
        best = int(logits.argmax())
        if not math.isfinite(float(logits[best])):
            raise EngineFault("the model's logits are no finite numbers")
        row = logits
        if self._occurred is not None:
            row = penalized(logits, self._occurred, self._parameters.repetition_penalty)
            best = int(row.argmax())
        token = best
        if not self._parameters.greedy:
            assert self._generator is not None
            ids, weights = kept(row, self._parameters)
            token = draw(ids, weights, float(self._generator.random()))
        if self._occurred is not None:
            self._occurred[token] = True
        if self._logprobs is None:
            return Choice(token)
        scored, alternatives = score(logits, token, self._logprobs)
        return Choice(token, scored, alternatives)


def generator_of(seed: int, answer: int) -> np.random.Generator:
    """The generator of one of the answers of a prompt: seed and number alone decide it."""
    return np.random.default_rng((seed, answer))


def penalized(logits: Row, occurred: NDArray[np.bool_], penalty: float) -> Row:
    """Logits with those of tokens that occurred made less likely: divided, or multiplied if
    negative (Keskar et al. 2019)."""
    values = logits[occurred]
    row = logits.copy()
    row[occurred] = np.where(values > 0, values / penalty, values * penalty)
    return row


def kept(logits: Row, parameters: SamplingParameters) -> tuple[Ids, Doubles]:
    """The tokens that may be drawn, most likely first, and their weights, which sum to any value.

    In this order: temperature, the `top_k` most likely, of these the fewest whose share reaches
    `top_p`, of these all of at least `min_p` of the best. Equal tokens are in order of their id.
    """
    size = len(logits)
    top_p = parameters.top_p if parameters.top_p < 1.0 else 0.0
    count = min(parameters.top_k or size, size)
    # Dividing the differences, not the logits, cannot overflow the exponential.
    highest = float(logits.max())
    weights = np.exp((logits.astype(np.float64) - highest) / parameters.temperature)
    if count == size and not top_p:
        ids = np.arange(size) if not parameters.min_p else _at_least(weights, parameters.min_p)
        ids = ids[np.argsort(-weights[ids], kind="stable")] if len(ids) <= _FEW else ids
        return ids, weights[ids]
    if count == size:
        return _nucleus(weights, top_p, parameters.min_p)
    ids = _most_likely(weights, count)
    if top_p:
        ids = ids[: _reach(weights[ids], top_p * float(weights[ids].sum()))]
    found = weights[ids]
    if parameters.min_p:
        ids = ids[found >= parameters.min_p]
    return ids, weights[ids]


def draw(ids: Ids, weights: Doubles, chance: float) -> int:
    """The token at which the running sum of weights passes `chance` (0 to 1) of their total."""
    sums = np.cumsum(weights)
    place = int(np.searchsorted(sums, chance * sums[-1], side="right"))
    return int(ids[min(place, len(ids) - 1)])


def score(logits: Row, token: int, alternatives: int) -> tuple[Scored, tuple[Scored, ...]]:
    """Log probability of a token, and the most likely tokens with theirs."""
    values = logits.astype(np.float64)
    highest = values.max()
    total = highest + math.log(float(np.exp(values - highest).sum()))
    best = _most_likely(values, min(alternatives, len(logits))) if alternatives else ()
    others = tuple(Scored(int(i), float(values[i] - total)) for i in best)
    return Scored(token, float(values[token] - total)), others


def _most_likely(values: Doubles, count: int) -> Ids:
    """The `count` highest, highest first; equal ones by id, also at the border."""
    if count < len(values):
        border = np.partition(values, len(values) - count)[len(values) - count]
        above = np.flatnonzero(values > border)
        equal = np.flatnonzero(values == border)[: count - len(above)]
        ids = np.concatenate([above, equal])
    else:
        ids = np.arange(len(values))
    # Stable over ascending ids, so equal values stay in order of their id.
    ids = np.sort(ids)
    ordered: Ids = ids[np.argsort(-values[ids], kind="stable")]
    return ordered


def _nucleus(weights: Doubles, top_p: float, min_p: float) -> tuple[Ids, Doubles]:
    """`top_p` over the whole vocabulary; a few of it are nearly always enough."""
    wanted = top_p * float(weights.sum())
    count = min(_FEW, len(weights))
    ids = _most_likely(weights, count)
    while (reached := _reach(weights[ids], wanted)) == count < len(weights):
        count = min(count * 8, len(weights))
        ids = _most_likely(weights, count)
    ids = ids[:reached]
    if min_p:
        ids = ids[weights[ids] >= min_p]
    return ids, weights[ids]


def _reach(weights: Doubles, wanted: float) -> int:
    """How many of the first weights it takes to reach a sum; all when they do not."""
    sums = np.cumsum(weights)
    return min(int(np.searchsorted(sums, wanted, side="left")) + 1, len(weights))


def _at_least(weights: Doubles, share: float) -> Ids:
    return np.flatnonzero(weights >= share)


def _check(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise InvalidInput(f"{name} is {value:g}; accepted is {low:g} to {high:g}")


def check_tokens(name: str, tokens: Sequence[int], vocabulary: int) -> None:
    """Raises InvalidInput when a token id is outside the vocabulary."""
    if tokens and max(tokens) >= vocabulary:
        place = next(i for i, token in enumerate(tokens) if token >= vocabulary)
        raise InvalidInput(
            f"{name}[{place}] is outside the vocabulary; accepted are ids below {vocabulary}"
        )
