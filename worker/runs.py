"""One run of a batch on the engine, whose every end is an outcome."""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Protocol

from worker.errors import EngineFault, RunTerminated, WorkerError, where_raised
from worker.jobs import Job, Token
from worker.records import Batch, Execution, Item, ItemOutcome
from worker.refusals import Unavailable

log = logging.getLogger(__name__)

ABANDONED = Unavailable("the worker ended before the item was answered")


class Runner(Protocol):
    """Executes items of one variant; called by one thread at a time."""

    def run(self, model: str, variant: str, items: Collection[Item], token: Token) -> Execution:
        """Returns one outcome an item; raises WorkerError when none of them has an answer."""


def run_guarded(runner: Runner, batch: Batch, items: list[Item], token: Token) -> Execution:
    """Runs items of a batch; an error that concerns all of them becomes the outcome of each."""
    error: WorkerError
    try:
        return runner.run(batch.model, batch.variant, items, token)
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


def outcomes_of(job: Job, indices: list[int], execution: Execution) -> tuple[ItemOutcome, ...]:
    """One outcome for each item of a batch: how it ended otherwise, or what the run gave it.

    `indices` are the places in the batch of the items that ran.
    """
    outcomes: list[ItemOutcome | None] = list(job.endings)
    for index, outcome in zip(indices, execution.outcomes, strict=True):
        if outcomes[index] is None:
            outcomes[index] = outcome
    return tuple(outcome for outcome in outcomes if outcome is not None)
