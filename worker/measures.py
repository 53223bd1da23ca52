"""What an encoder worker measures of its batches, in plain integers; `worker/metrics` shows it."""

from __future__ import annotations

from worker.errors import EngineFault, InvalidInput, RunTerminated, WorkerError
from worker.histogram import SIZES, TIMES_NS, Histogram
from worker.records import BatchOutcome
from worker.refusals import Cancelled, Expired, NotFound, Unavailable

OK = "ok"
_WORDS: dict[type[WorkerError], str] = {
    Cancelled: "cancelled",
    Expired: "expired",
    InvalidInput: "invalid",
    NotFound: "not-found",
    Unavailable: "unavailable",
    EngineFault: "failed",
    RunTerminated: "unavailable",
}
OUTCOMES = (OK, *dict.fromkeys(_WORDS.values()))


class VariantMeasures:
    """Runs of one variant; times in ns."""

    __slots__ = ("cpu_ns", "padding", "queue", "run", "size", "tokens")

    def __init__(self) -> None:
        self.queue = Histogram(TIMES_NS)
        self.run = Histogram(TIMES_NS)
        self.size = Histogram(SIZES)
        self.tokens = 0
        self.padding = 0
        self.cpu_ns = 0


class BatchMeasures:
    """Everything that ended on the engine loop. Written and read on the event loop.

    `items` counts them by outcome, `variants` by model and variant what was run.
    """

    __slots__ = ("items", "variants")

    def __init__(self) -> None:
        self.items = dict.fromkeys(OUTCOMES, 0)
        self.variants: dict[tuple[str, str], VariantMeasures] = {}

    def record(self, outcome: BatchOutcome) -> None:
        """A batch has ended."""
        items = self.items
        for result in outcome.outcomes:
            word = _WORDS.get(type(result), "failed") if isinstance(result, WorkerError) else OK
            items[word] += 1
        if not outcome.executed_items:
            # Callers may name any variant; only what could run is told apart.
            return
        batch = outcome.batch
        key = (batch.model, batch.variant)
        variant = self.variants.get(key)
        if variant is None:
            variant = self.variants[key] = VariantMeasures()
        variant.queue.observe(outcome.started_ns - batch.arrived_ns)
        variant.run.observe(outcome.ended_ns - outcome.started_ns)
        variant.size.observe(outcome.executed_items)
        variant.tokens += outcome.tokens
        variant.padding += outcome.padding
        variant.cpu_ns += outcome.cpu_ns
