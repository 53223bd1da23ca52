"""How the next token of a sequence is chosen from its logits. Pure arithmetic over one row.

A sequence has a sampler of its own with a generator of its own, so the same logits and seed give
the same tokens in whatever company the sequence is decoded.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from worker.errors import EngineFault, InvalidInput
from worker.generation.penalties import Penalties, PenaltyParameters, check_range

Row = NDArray[np.float32]
Ids = NDArray[np.int64]

# As the control plane has it.
MOST_TEMPERATURE = 10.0
# Below this the most likely token is all that single precision leaves.
_LEAST_TEMPERATURE = 1e-5
# Tokens that are looked at before the whole vocabulary is put in order.
_FEW = 256
# Tokens that are first looked at together, by their highest weight or by their sum.
_PIECE = 64


@dataclass(frozen=True, slots=True)
class SamplingParameters:
    """What a caller asks of the choice; the defaults are greedy decoding.

    A `temperature` of 0, or as good as that, is greedy. `top_k` 0 keeps all tokens, and so do
    `top_p` 0 and 1; `min_p` drops tokens below this share of the most likely one's probability.
    `penalties` come before all of these. `seed` None draws one.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 0.0
    min_p: float = 0.0
    penalties: PenaltyParameters = field(default_factory=PenaltyParameters)
    seed: int | None = None

    def check(self) -> None:
        """Raises InvalidInput naming the parameter, what came and what is accepted."""
        check_range("temperature", self.temperature, 0.0, MOST_TEMPERATURE)
        check_range("top_p", self.top_p, 0.0, 1.0)
        check_range("min_p", self.min_p, 0.0, 1.0)
        self.penalties.check()

    @property
    def greedy(self) -> bool:
        """Whether no chance is involved."""
        return self.temperature < _LEAST_TEMPERATURE or self.top_k == 1


@dataclass(frozen=True, slots=True)
class Scored:
    """A token and the natural logarithm of its probability before penalties and filters."""

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

    `occurred` are the tokens of the prompt.
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
        self._penalties: Penalties | None = None
        if not parameters.penalties.idle:
            self._penalties = Penalties(
                parameters.penalties, vocabulary=vocabulary, occurred=occurred
            )

    def choose(self, logits: Row) -> Choice:
        """The next token after a row of logits [vocabulary], which is left as it is.

        Raises EngineFault when the row holds what is no number.
        """
        best = int(logits.argmax())
        if not math.isfinite(float(logits[best])):
            raise EngineFault("the model's logits are no finite numbers")
        row = logits
        if self._penalties is not None:
            row = self._penalties.applied(logits)
            best = int(row.argmax())
        token = best
        if not self._parameters.greedy:
            assert self._generator is not None
            ids, weights = kept(row, self._parameters)
            token = draw(ids, weights, float(self._generator.random()))
        if self._penalties is not None:
            self._penalties.chose(token)
        if self._logprobs is None:
            return Choice(token)
        scored, alternatives = score(logits, token, self._logprobs)
        return Choice(token, scored, alternatives)


def generator_of(seed: int, answer: int) -> np.random.Generator:
    """The generator of one of the answers of a prompt: seed and number alone decide it."""
    return np.random.default_rng((seed, answer))


def kept(logits: Row, parameters: SamplingParameters) -> tuple[Ids | None, Row]:
    """The tokens that may be drawn, None for all, and their weights, which sum to any value.

    In this order: temperature, the `top_k` most likely, of these the fewest whose share reaches
    `top_p`, of these all of at least `min_p` of the best. Equal tokens count in order of their id.
    """
    size = len(logits)
    top_p = parameters.top_p if parameters.top_p < 1.0 else 0.0
    top_k = parameters.top_k if parameters.top_k < size else 0
    weights = exponentials(logits, parameters.temperature)
    ids: Ids | None = None
    if top_k:
        ids = most_likely(weights, top_k)
        if top_p:
            some = weights[ids]
            ids = ids[: _reach(some, top_p * total(some))]
    elif top_p:
        ids = _nucleus(weights, top_p * total(weights))
    if parameters.min_p:
        if ids is None:
            ids = np.flatnonzero(weights >= parameters.min_p)
        else:
            ids = ids[weights[ids] >= parameters.min_p]
    return ids, weights if ids is None else weights[ids]


def draw(ids: Ids | None, weights: Row, chance: float) -> int:
    """The token at which the running sum of weights passes `chance` (0 to 1) of their total."""
    # Sums of pieces first: a running sum over a whole vocabulary takes long.
    starts = np.arange(0, len(weights), _PIECE)
    sums = np.cumsum(np.add.reduceat(weights, starts, dtype=np.float64))
    wanted = chance * sums[-1]
    piece = min(int(np.searchsorted(sums, wanted, side="right")), len(sums) - 1)
    first = piece * _PIECE
    before = float(sums[piece - 1]) if piece else 0.0
    inside = np.cumsum(weights[first : first + _PIECE], dtype=np.float64)
    offset = int(np.searchsorted(inside, wanted - before, side="right"))
    place = first + min(offset, len(inside) - 1)
    return place if ids is None else int(ids[place])


def score(logits: Row, token: int, alternatives: int) -> tuple[Scored, tuple[Scored, ...]]:
    """Log probability of a token, and the most likely tokens with theirs."""
    log_total = float(logits.max()) + math.log(total(exponentials(logits, 1.0)))
    best = most_likely(logits, min(alternatives, len(logits))) if alternatives else ()
    others = tuple(Scored(int(i), float(logits[i]) - log_total) for i in best)
    return Scored(token, float(logits[token]) - log_total), others


def exponentials(logits: Row, temperature: float) -> Row:
    """exp(logit / temperature) of each token over that of the most likely one."""
    # Dividing the differences, not the logits, cannot overflow; in place, as rows are long.
    weights: Row = logits - logits.max()
    weights /= np.float32(temperature)
    np.exp(weights, out=weights)
    return weights


def total(weights: Row) -> float:
    """The sum, in double precision."""
    return float(weights.sum(dtype=np.float64))


def most_likely(values: Row, count: int) -> Ids:
    """The `count` highest, highest first; equal ones by id, also at the border."""
    ids = np.arange(len(values))
    starts = np.arange(0, len(values), _PIECE)
    if count < len(starts):
        # As many pieces have a highest value of at least this, so no lower one is among them.
        highest = np.maximum.reduceat(values, starts)
        border = np.partition(highest, len(highest) - count)[len(highest) - count]
        ids = np.flatnonzero(values >= border)
    # Stable over ascending ids, so equal values stay in order of their id.
    ordered: Ids = ids[np.argsort(-values[ids], kind="stable")[:count]]
    return ordered


def _nucleus(weights: Row, wanted: float) -> Ids:
    """The fewest most likely tokens whose weights reach a sum; a few are nearly always enough."""
    few = most_likely(weights, min(_FEW, len(weights)))
    reached = _reach(weights[few], wanted)
    if reached < len(few) or len(few) == len(weights):
        return few[:reached]
    # Weights of like size next: positive floats are in the order of their bits, of which the first
    # are exponent and three of the fraction. Only the size at the border is put in order.
    sizes = weights.view(np.int32) >> 20
    sums = np.cumsum(np.bincount(sizes, weights=weights)[::-1])
    place = min(int(np.searchsorted(sums, wanted, side="left")), len(sums) - 1)
    border = len(sums) - 1 - place
    above, inside = np.flatnonzero(sizes > border), np.flatnonzero(sizes == border)
    inside = inside[np.argsort(-weights[inside], kind="stable")]
    before = float(sums[place - 1]) if place else 0.0
    return np.concatenate([above, inside[: _reach(weights[inside], wanted - before)]])


def _reach(weights: Row, wanted: float) -> int:
    """How many of the first weights it takes to reach a sum; all when they do not."""
    sums = np.cumsum(weights, dtype=np.float64)
    return min(int(np.searchsorted(sums, wanted, side="left")) + 1, len(weights))


def check_tokens(name: str, tokens: Sequence[int], vocabulary: int) -> None:
    """Raises InvalidInput when a token id is outside the vocabulary."""
    if tokens and max(tokens) >= vocabulary:
        place = next(i for i, token in enumerate(tokens) if token >= vocabulary)
        raise InvalidInput(
            f"{name}[{place}] is outside the vocabulary; accepted are ids below {vocabulary}"
        )
