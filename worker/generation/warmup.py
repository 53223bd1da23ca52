"""Warm-up of a decoder: runs steps through the engine that serves, which also measures their cost.

The steps run on an arena of their own, so a model that serves is measured without its scheduler's
blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

from worker.decode import SequenceStep
from worker.generation.lane import Stepper
from worker.generation.profile import StepSample, StepShape, fit_steps, predict_us, step_shapes
from worker.kv_arena import KvArena
from worker.scheduling.blocks import BLOCK_TOKENS, blocks_for
from worker.scheduling.cost import StepCost

# Passes over all shapes; the first is always made, a second while not much more is spent.
_FEWEST_PASSES = 2
_MOST_PASSES = 12
_OVERDRAFT = 3.0
_OWNER = 1


class DecodeWarmup:
    """Measures decoders. `on_engine` runs a function on the engine thread and waits for it.

    Passes go on while `budget_ns` lasts. Steps are timed by `service_ns`, read on the engine
    thread: its CPU clock where one thread does all the work.
    """

    def __init__(
        self,
        on_engine: Callable[[Callable[[], int]], int],
        now_ns: Callable[[], int],
        budget_ns: int,
        service_ns: Callable[[], int],
    ) -> None:
        self._on_engine = on_engine
        self._now_ns = now_ns
        self._budget_ns = budget_ns
        self._service_ns = service_ns

    def measure(self, bench: StepBench, progress: Callable[[float], None]) -> StepCost:
        """Runs every shape in several passes and fits the cost; raises WorkerError."""
        for shape in bench.shapes:
            # The first run of a shape is not typical.
            self._run(bench, shape)
        started = self._now_ns()
        samples: list[StepSample] = []
        for number in range(_MOST_PASSES):
            spent = (self._now_ns() - started) / self._budget_ns
            if number and spent > (_OVERDRAFT if number < _FEWEST_PASSES else 1.0):
                break
            progress(min(1.0, max(number / _MOST_PASSES, spent)))
            samples += [StepSample(shape, self._run(bench, shape)) for shape in bench.shapes]
        return fit_steps(samples)

    def compare(self, bench: StepBench, cost: StepCost) -> float:
        """The median of measured over predicted time; raises WorkerError."""
        ratios = []
        for shape in bench.shapes:
            self._run(bench, shape)
            ratios.append(self._run(bench, shape) / predict_us(cost, shape))
        return median(ratios)

    def _run(self, bench: StepBench, shape: StepShape) -> float:
        """Time of one step, in microseconds."""

        def timed() -> int:
            before = self._service_ns()
            bench.run(shape)
            return self._service_ns() - before

        return self._on_engine(timed) / 1e3


class StepBench:
    """Steps of any warm-up shape on an arena that holds as many sequences as the largest needs.

    `make_engine` makes an engine over an arena of so many blocks.
    """

    def __init__(
        self, make_engine: Callable[[int], Stepper], *, vocabulary: int, context: int
    ) -> None:
        self.shapes = step_shapes(context)
        self._vocabulary = vocabulary
        longest = max(shape.past for shape in self.shapes)
        most = max(shape.decoding for shape in self.shapes)
        # One block more than the past, for the token that is added.
        each = blocks_for(longest) + 1
        chunk = blocks_for(max(shape.chunk for shape in self.shapes))
        self._engine = make_engine(most * each + chunk)
        self._sequences = [tuple(range(n * each, (n + 1) * each)) for n in range(most)]
        self._chunk = tuple(range(most * each, most * each + chunk))
        arena = self._engine.arena
        arena.acquire(range(most * each + chunk), _OWNER)
        if longest:
            self._fill(arena, longest)

    def run(self, shape: StepShape) -> None:
        """Run one step; raises WorkerError."""
        parts = []
        for n, blocks in enumerate(self._sequences[: shape.decoding]):
            # The added token goes into the last block: a past that is longer stays whole.
            held = (*blocks[: shape.past // BLOCK_TOKENS], blocks[-1])
            parts.append(SequenceStep([self._token(n)], shape.past, held))
        if shape.chunk:
            tokens = [self._token(n) for n in range(shape.chunk)]
            parts.append(SequenceStep(tokens, 0, self._chunk[: blocks_for(shape.chunk)]))
        self._engine.step(parts)

    def _fill(self, arena: KvArena, tokens: int) -> None:
        """Computes one past and copies it to the other sequences."""
        first = self._sequences[0]
        for start in range(0, tokens, BLOCK_TOKENS * 8):
            count = min(BLOCK_TOKENS * 8, tokens - start)
            part = [self._token(start + n) for n in range(count)]
            self._engine.step([SequenceStep(part, start, first)])
        for other in self._sequences[1:]:
            for source, target in zip(first[:-1], other[:-1], strict=True):
                arena.copy(source, target)

    def _token(self, place: int) -> int:
        """Ids spread over the vocabulary, so that runs touch its rows."""
        return place * 7919 % self._vocabulary
