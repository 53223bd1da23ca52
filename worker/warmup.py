"""Warm-up of one variant: runs its declared shapes, which also measures its profile."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from statistics import median

import numpy as np
from numpy.typing import NDArray

from worker.errors import EngineFault, InvalidInput
from worker.execution import run_items
from worker.hosted import LoadedVariant
from worker.jobs import Token
from worker.ledger import RunMemory
from worker.models.manifest import TensorSpec, Variant
from worker.profile import Sample, VariantProfile, WarmPlan, fit, reference_length, warm_plan
from worker.records import Item
from worker.tensor_sizes import free_size, trial_sizes

log = logging.getLogger(__name__)

# Passes over all shapes, and runs of the reference shape in each.
_FEWEST_PASSES = 2
_MOST_PASSES = 12
_REFERENCE_RUNS = 3
# A kept profile is compared with runs of shapes up to this: a worker that is replaced under load
# takes its neighbours' cores for every token more.
_COMPARED_TOKENS = 64
# The fewest passes may take this many times the budget; the first is always made.
_OVERDRAFT = 3.0
# A tensor run that takes more than this part of the budget is not tried in a larger size.
_TENSOR_BUDGET_SHARE = 32


class Warmup:
    """Measures variants through the call that serves.

    `on_engine` runs a function on the engine thread and waits for it, so that a warm-up
    run never competes with a served one. Passes go on while `budget_ns` lasts. Runs are timed
    by `service_ns`, read on the engine thread: the thread's CPU clock where one thread does all
    the work, so that whatever else the machine does while models load is not in the profile.
    `memory`, if there is one, notes what the usual and the longest run take.
    """

    def __init__(
        self,
        on_engine: Callable[[Callable[[], int]], int],
        make_token: Callable[[], Token],
        now_ns: Callable[[], int],
        budget_ns: int,
        service_ns: Callable[[], int],
        memory: RunMemory | None = None,
    ) -> None:
        self._on_engine = on_engine
        self._make_token = make_token
        self._now_ns = now_ns
        self._budget_ns = budget_ns
        self._service_ns = service_ns
        self._memory = memory

    def measure(
        self, loaded: LoadedVariant, progress: Callable[[float], None]
    ) -> VariantProfile | None:
        """Runs every warm shape in several passes and fits the profile.

        A tensor variant is tried with zeros in growing sizes of its free dimensions, and its
        elements count as tokens; when it rejects the smallest it has no profile. Raises
        WorkerError when a token variant does not run.
        """
        variant = loaded.variant
        if variant.layout == "tensor":
            try:
                shapes = self._tensor_shapes(loaded)
                return self._measure(loaded, shapes, reference_length(shapes), progress)
            except (InvalidInput, EngineFault) as error:
                log.warning("variant=%s has no profile: %s", variant.name, error)
                return None
        plan = warm_plan(variant.warm_lengths, variant.max_tokens)
        long = self._long_runs(loaded, plan)
        return self._measure(loaded, plan.shapes, reference_length(plan.shapes), progress, long)

    def compare(self, loaded: LoadedVariant, profile: VariantProfile) -> float:
        """Runs every warm shape of a variant whose profile is known, the short ones again.

        Returns the median of measured over predicted time of the latter, 1 for a variant of
        tensors, whose inputs nobody knows. Raises WorkerError when the variant does not run.
        """
        variant = loaded.variant
        if variant.layout == "tensor":
            return 1.0
        plan = warm_plan(variant.warm_lengths, variant.max_tokens)
        self._long_runs(loaded, plan)
        for shape in reversed(plan.shapes):
            # The first run of a shape is not typical; it is what makes the next ones so.
            self._run(loaded, shape)
        short = [shape for shape in plan.shapes if sum(shape) <= _COMPARED_TOKENS]
        compared = short or plan.shapes[:1]
        return median(self._run(loaded, s) / profile.predict_us(s) for s in compared)

    def _long_runs(self, loaded: LoadedVariant, plan: WarmPlan) -> list[Sample]:
        """Runs the long shapes once, longest first, so that buffers grow once."""
        memory = self._memory
        if memory is not None:
            usual = reference_length(plan.shapes)
            self._on_engine(memory.clear)
            self._run(loaded, (usual,))
            memory.ran(usual)
        samples = []
        for shape in reversed(plan.long):
            samples.append(Sample(shape, self._run(loaded, shape)))
            if memory is not None and len(samples) == 1:
                memory.ran(sum(shape))
        return samples

    def _tensor_shapes(self, loaded: LoadedVariant) -> tuple[tuple[int, ...], ...]:
        """The sizes that the variant takes, and that leave time for others in the budget."""
        first, *larger = trial_sizes(loaded.variant.inputs)
        elapsed_us = self._run(loaded, (first,))
        shapes = [(first,)]
        for size in larger:
            if elapsed_us * 1e3 > self._budget_ns / _TENSOR_BUDGET_SHARE:
                break
            try:
                elapsed_us = self._run(loaded, (size,))
            except (InvalidInput, EngineFault):
                # The graph ties its dimensions to each other; another size may fit.
                continue
            shapes.append((size,))
        return tuple(shapes)

    def _measure(
        self,
        loaded: LoadedVariant,
        shapes: tuple[tuple[int, ...], ...],
        reference: int,
        progress: Callable[[float], None],
        measured: Sequence[Sample] = (),
    ) -> VariantProfile:
        started = self._now_ns()
        for shape in reversed(shapes):
            # The first run of a shape is not typical.
            self._run(loaded, shape)
        samples = list(measured)
        for number in range(_MOST_PASSES):
            spent = (self._now_ns() - started) / self._budget_ns
            if number and spent > (_OVERDRAFT if number < _FEWEST_PASSES else 1.0):
                break
            progress(min(1.0, max(number / _MOST_PASSES, spent)))
            for shape in shapes:
                again = _REFERENCE_RUNS if shape == (reference,) and spent < 1.0 else 1
                samples += [Sample(shape, self._run(loaded, shape)) for _ in range(again)]
        tokens = loaded.variant.layout != "tensor"
        return fit(loaded.variant.name, samples, reference, quadratic=tokens)

    def _run(self, loaded: LoadedVariant, shape: tuple[int, ...]) -> float:
        """Service time of one run of a shape, in microseconds."""
        item = warm_item(loaded.variant, shape, loaded.vocabulary)

        def timed() -> int:
            before = self._service_ns()
            execution = run_items(
                loaded.session, loaded.variant, loaded.vocabulary, [item], self._make_token()
            )
            elapsed = self._service_ns() - before
            for outcome in execution.outcomes:
                if isinstance(outcome, Exception):
                    raise outcome
            return elapsed

        return self._on_engine(timed) / 1e3


def warm_item(variant: Variant, lengths: tuple[int, ...], vocabulary: int) -> Item:
    """An input of the given shape: spread token ids, or that many zeros for a tensor variant."""
    if variant.layout == "tensor":
        free = free_size(variant.inputs, sum(lengths))
        tensors = {spec.name: _zeros(spec, free) for spec in variant.inputs}
        return Item(item_id=0, deadline_ns=0, tensors=tensors)
    # Time does not hang on the values; ids spread over the vocabulary touch its rows.
    total = sum(lengths)
    ids = np.arange(total, dtype=np.int64) * 7919 % max(vocabulary, 1)
    return Item(item_id=0, deadline_ns=0, token_ids=ids.astype(np.int32), lengths=lengths)


def _zeros(spec: TensorSpec, free: int) -> NDArray[np.generic]:
    shape = tuple(free if size < 0 else size for size in spec.shape)
    if spec.dtype == "string":
        return np.full(shape, b"", dtype=object)
    return np.zeros(shape, spec.dtype)
