"""Warm-up of one variant: runs its declared shapes, which also measures its profile."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from worker.errors import EngineFault, InvalidInput
from worker.execution import run_items
from worker.hosted import LoadedVariant
from worker.jobs import Token
from worker.models.manifest import TensorSpec, Variant
from worker.profile import Sample, VariantProfile, fit, reference_length, warm_plan
from worker.records import Item

log = logging.getLogger(__name__)

# Passes over all shapes, and runs of the reference shape in each.
_FEWEST_PASSES = 2
_MOST_PASSES = 12
_REFERENCE_RUNS = 3
# The fewest passes may take this many times the budget; the first is always made.
_OVERDRAFT = 3.0


class Warmup:
    """Measures variants through the call that serves.

    `on_engine` runs a function on the engine thread and waits for it, so that a warm-up
    run never competes with a served one. Passes go on while `budget_ns` lasts. Runs are timed
    by `service_ns`, read on the engine thread: the thread's CPU clock where one thread does all
    the work, so that whatever else the machine does while models load is not in the profile.
    """

    def __init__(
        self,
        on_engine: Callable[[Callable[[], int]], int],
        make_token: Callable[[], Token],
        now_ns: Callable[[], int],
        budget_ns: int,
        service_ns: Callable[[], int],
    ) -> None:
        self._on_engine = on_engine
        self._make_token = make_token
        self._now_ns = now_ns
        self._budget_ns = budget_ns
        self._service_ns = service_ns

    def measure(
        self, loaded: LoadedVariant, progress: Callable[[float], None]
    ) -> VariantProfile | None:
        """Runs every warm shape in several passes and fits the profile.

        A tensor variant is tried with zeros and ones for its free dimensions; when it
        rejects those it has no profile. Raises WorkerError when a token variant does not run.
        """
        variant = loaded.variant
        if variant.layout == "tensor":
            try:
                return self._measure(loaded, ((),), 0, progress)
            except (InvalidInput, EngineFault) as error:
                log.warning("variant=%s has no profile: %s", variant.name, error)
                return None
        plan = warm_plan(variant.warm_lengths, variant.max_tokens)
        # Longest first, so that buffers grow once.
        long = [Sample(shape, self._run(loaded, shape)) for shape in reversed(plan.long)]
        return self._measure(loaded, plan.shapes, reference_length(plan.shapes), progress, long)

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
                again = _REFERENCE_RUNS if shape in ((), (reference,)) and spent < 1.0 else 1
                samples += [Sample(shape, self._run(loaded, shape)) for _ in range(again)]
        return fit(loaded.variant.name, samples, reference)

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
    """An input of the given shape: spread token ids, or zeros for a tensor variant."""
    if variant.layout == "tensor":
        tensors = {spec.name: _zeros(spec) for spec in variant.inputs}
        return Item(item_id=0, deadline_ns=0, tensors=tensors)
    # Time does not hang on the values; ids spread over the vocabulary touch its rows.
    total = sum(lengths)
    ids = np.arange(total, dtype=np.int64) * 7919 % max(vocabulary, 1)
    return Item(item_id=0, deadline_ns=0, token_ids=ids.astype(np.int32), lengths=lengths)


def _zeros(spec: TensorSpec) -> NDArray[np.generic]:
    shape = tuple(1 if size < 0 else size for size in spec.shape)
    if spec.dtype == "string":
        return np.full(shape, b"", dtype=object)
    return np.zeros(shape, spec.dtype)
