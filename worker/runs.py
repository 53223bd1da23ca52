"""One run of a batch on the engine, whose every end is an outcome."""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Protocol

from worker.errors import EngineFault, RunTerminated, WorkerError, where_raised
from worker.jobs import Job, Token
from worker.records import Batch, BatchOutcome, Execution, Item, ItemOutcome
from worker.refusals import ABANDONED

log = logging.getLogger(__name__)


class Runner(Protocol):
    """Executes items of one variant; called by one thread at a time."""

    def run(self, model: str, variant: str, items: Collection[Item], token: Token) -> Execution:
        """Returns one outcome an item; raises WorkerError when none of them has an answer."""


def run_guarded(runner: Runner, batch: Batch, items: list[Item], token: Token) -> Execution:
    """Runs items of a batch; an error that concerns all of them becomes the outcome of each."""
    error: WorkerError
    try:
        execution = runner.run(batch.model, batch.variant, items, token)
        if len(execution.outcomes) == len(items):
            return execution
        log.error("a run of %d items had %d outcomes", len(items), len(execution.outcomes))
        error = EngineFault("the worker failed: not every item of the run has one outcome")
    except RunTerminated:
        # Who terminated it has ended the items already, so this reaches nobody.
        error = ABANDONED
    except WorkerError as raised:
        error = raised
    except Exception as fault:
        # The thread outlives a fault of ours.
        log.error("run failed with %s at\n%s", type(fault).__name__, where_raised(fault))
        error = EngineFault(f"the worker failed with {type(fault).__name__}")
    return Execution((error,) * len(items), 0)


def outcome_of(
    job: Job, indices: list[int], execution: Execution, span_ns: tuple[int, int], cpu_ns: int
) -> BatchOutcome:
    """The end of a batch whose items at `indices` ran, from and to `span_ns`.

    Each item ends as it ended meanwhile, if it did, or else with what the run gave it.
    """
    outcomes: list[ItemOutcome | None] = list(job.endings)
    for index, outcome in zip(indices, execution.outcomes, strict=True):
        if outcomes[index] is None:
            outcomes[index] = outcome
    return BatchOutcome(
        job.batch,
        tuple(outcome for outcome in outcomes if outcome is not None),
        span_ns[0],
        span_ns[1],
        cpu_ns,
        execution.tokens,
        len(indices),
        execution.padding,
        execution.peak_bytes,
    )
