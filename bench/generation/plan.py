"""What a run of generations sends and when: plain values, drawn from a seed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from bench.sim.arrivals import Poisson

Door = Literal["worker", "controlplane"]

# A closed loop sends as many as end in time; more than these it never needs.
_CLOSED_DRAWS = 4096
# So many rows of a closed loop, one after the other, have lengths spread evenly over their ranges.
_BALANCED = 16


@dataclass(frozen=True, slots=True)
class GenerationPlan:
    """One run against one target.

    `rate_per_s` above 0: Poisson arrivals over `seconds`, whatever the answers do. Otherwise
    `in_flight` generations at any time. The first `warmup_s` are sent but not counted.
    Prompts and answers have a number of tokens drawn evenly from their ranges, both ends
    included, and those of a closed loop balanced; answers never end before theirs.
    `first_token_ms` and `token_ms` are the targets, `drain_s` is how long after the last arrival
    answers are waited for. `door` is the service that is called: the decode worker's own, or the
    control plane's, which is told the `tenant`.
    """

    target: str
    model: str
    vocabulary: int
    rate_per_s: float = 0.0
    in_flight: int = 0
    seconds: float = 30.0
    warmup_s: float = 5.0
    drain_s: float = 15.0
    prompt_tokens: tuple[int, int] = (64, 448)
    answer_tokens: tuple[int, int] = (64, 192)
    first_token_ms: float = 500.0
    token_ms: float = 50.0
    door: Door = "worker"
    tenant: str = ""
    seed: int = 1

    def __post_init__(self) -> None:
        """Raises ValueError naming what is wrong."""
        if (self.rate_per_s > 0) == (self.in_flight > 0):
            raise ValueError("expected either rate_per_s or in_flight above 0")
        for name in ("prompt_tokens", "answer_tokens"):
            low, high = getattr(self, name)
            if not 1 <= low <= high:
                raise ValueError(f"{name}: expected 1 <= low <= high, got {low}, {high}")
        if self.seconds <= 0 or self.warmup_s < 0 or self.drain_s < 0:
            raise ValueError("expected seconds above 0 and the other times at least 0")
        if self.vocabulary < 2:
            raise ValueError(f"vocabulary: expected at least 2, got {self.vocabulary}")


@dataclass(frozen=True, slots=True)
class GenerationSchedule:
    """One row a generation: due time in ns after the start, tokens of prompt and answer.

    A closed loop has no due times and takes the other columns in turn.
    """

    due_ns: NDArray[np.int64]
    prompt_tokens: NDArray[np.int64]
    answer_tokens: NDArray[np.int64]


def draw_generations(plan: GenerationPlan) -> GenerationSchedule:
    """The generations of a plan; one seed gives one schedule."""
    generator = np.random.default_rng(plan.seed)
    due = np.empty(0, np.int64)
    if plan.rate_per_s > 0:
        span_s = plan.warmup_s + plan.seconds
        due = (Poisson(plan.rate_per_s).times_s(generator, span_s) * 1e9).astype(np.int64)
    else:
        # A capacity rests on some tens of generations: what they ask must not be luck.
        return GenerationSchedule(
            due,
            _balanced(generator, *plan.prompt_tokens),
            _balanced(generator, *plan.answer_tokens),
        )
    return GenerationSchedule(
        due,
        generator.integers(*plan.prompt_tokens, len(due), endpoint=True),
        generator.integers(*plan.answer_tokens, len(due), endpoint=True),
    )


def _balanced(generator: np.random.Generator, low: int, high: int) -> NDArray[np.int64]:
    """Lengths whose every `_BALANCED` rows have the range's mean, in drawn order."""
    spread = low + (high - low) * (np.arange(_BALANCED) + 0.5) / _BALANCED
    lengths = np.rint(spread).astype(np.int64)
    rows = np.tile(lengths, (_CLOSED_DRAWS // _BALANCED, 1))
    return generator.permuted(rows, axis=1).reshape(-1)


def prompt_ids(seed: int, row: int, tokens: int, vocabulary: int) -> list[int]:
    """Token ids of a prompt that no other row begins like."""
    # The first ids of a vocabulary are its control tokens.
    low = min(64, vocabulary // 2)
    ids: list[int] = np.random.default_rng((seed, row)).integers(low, vocabulary, tokens).tolist()
    return ids
