"""Generations to simulate: when they arrive, their lengths, and their targets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bench.sim.arrivals import process
from worker.scheduling.cost import StepCost, StepLoad

_FIRST_TOKEN_NS = 500_000_000
_TOKEN_NS = 50_000_000
_FIRST_TOKEN_FACTOR = 2.0
_TOKEN_FACTOR = 2.0


@dataclass(frozen=True, slots=True)
class GenerationSizes:
    """Uniform ranges of tokens, both ends included."""

    prompt: tuple[int, int] = (64, 448)
    answer: tuple[int, int] = (64, 192)

    def __post_init__(self) -> None:
        for least, most in (self.prompt, self.answer):
            if not 1 <= least <= most:
                raise ValueError(f"expected 1 <= least <= most tokens, got {least} to {most}")


@dataclass(frozen=True, slots=True)
class TokenTargets:
    """When first tokens are due after their arrival, and each further one on average, in ns."""

    first_token_ns: int
    token_ns: int


def targets_for(cost: StepCost, sizes: GenerationSizes, width: int = 8) -> TokenTargets:
    """500 ms and 50 ms, unless the machine cannot.

    It cannot where twice the longest prompt alone takes longer, or twice the mean gap of
    `width` sequences that are replaced as they end: step(width) + token * width * mean prompt /
    mean answer. Those are its targets then.
    """
    longest = StepLoad(sizes.prompt[1], 0, 0)
    alone = cost.prefill_ns(longest) + cost.decode_ns(longest)
    prompt, answer = sum(sizes.prompt) / 2, sum(sizes.answer) / 2
    prompts = cost.prefill_ns(StepLoad(1, 0, 0)) * width * prompt / answer
    gap = cost.decode_ns(StepLoad(0, width, int(width * (prompt + answer / 2)))) + prompts
    return TokenTargets(
        max(_FIRST_TOKEN_NS, int(_FIRST_TOKEN_FACTOR * alone)),
        max(_TOKEN_NS, int(_TOKEN_FACTOR * gap)),
    )


@dataclass(frozen=True, slots=True)
class GenerationLoad:
    """One row a generation: arrival in ns, tokens of prompt and answer.

    `who` numbers whose it is (None: everybody's).
    """

    arrived_ns: NDArray[np.int64]
    prompt: NDArray[np.int64]
    answer: NDArray[np.int64]
    who: NDArray[np.int16] | None = None

    def __len__(self) -> int:
        return len(self.arrived_ns)


def draw_load(
    generator: np.random.Generator, rate_per_s: float, seconds: float, sizes: GenerationSizes
) -> GenerationLoad:
    """Poisson arrivals at a rate, over a span."""
    times = process("poisson", rate_per_s, seconds).times_s(generator, seconds)
    return _sized(generator, (times * 1e9).astype(np.int64), sizes)


def draw_backlog(
    generator: np.random.Generator, count: int, sizes: GenerationSizes
) -> GenerationLoad:
    """So many generations that are all there at the start."""
    return _sized(generator, np.zeros(count, np.int64), sizes)


def together(loads: Sequence[GenerationLoad]) -> GenerationLoad:
    """Several loads at once, each somebody's; in order of arrival."""
    arrived = np.concatenate([load.arrived_ns for load in loads])
    order = np.argsort(arrived, kind="stable")
    sizes = [len(load) for load in loads]
    return GenerationLoad(
        arrived[order],
        np.concatenate([load.prompt for load in loads])[order],
        np.concatenate([load.answer for load in loads])[order],
        np.repeat(np.arange(len(loads), dtype=np.int16), sizes)[order],
    )


def _sized(
    generator: np.random.Generator, arrived_ns: NDArray[np.int64], sizes: GenerationSizes
) -> GenerationLoad:
    count = len(arrived_ns)
    prompt = generator.integers(sizes.prompt[0], sizes.prompt[1] + 1, count)
    answer = generator.integers(sizes.answer[0], sizes.answer[1] + 1, count)
    return GenerationLoad(arrived_ns, prompt, answer)
