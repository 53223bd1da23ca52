"""How the requests of a simulated run ended, row by row."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bench.sim.answers import Answers
from bench.sim.result import Effort, Ending, Endings, SimResult, reduce
from bench.sim.workload import Workload
from controlplane.policy.profiles import VariantTable


class Tally:
    """Endings of the requests of one workload. What is of no request of it is not counted."""

    def __init__(self, workload: Workload, table: VariantTable, answers: Answers | None) -> None:
        count = len(workload)
        self._workload = workload
        self._table = table
        self._names = [candidate.name for candidate in table.candidates]
        self._answers = answers
        self._ending = np.full(count, -1, dtype=np.int8)
        self._variant = np.full(count, -1, dtype=np.int16)
        self._done = np.zeros(count, dtype=np.int64)
        self._answered = np.zeros(count, dtype=np.bool_)
        self._worth = np.zeros(count)
        self._escalated = np.zeros(count, dtype=np.bool_)
        # On which rung of the overload ladder each request found the pool.
        self.rungs = np.zeros(count, dtype=np.int8)

    def __len__(self) -> int:
        return len(self._ending)

    def end(self, number: int, ending: Ending, now_ns: int) -> None:
        """A request ended."""
        if number < len(self._ending):
            self._ending[number] = ending
            self._done[number] = now_ns

    def answer(self, number: int, variant: int, worth: float, escalated: bool) -> None:
        """It was answered, with this chance to be right; `escalated` after a second look."""
        self._answered[number] = True
        self._variant[number] = variant
        self._worth[number] = worth
        self._escalated[number] = escalated

    @property
    def last_ns(self) -> int:
        """When the last one ended."""
        return int(self._done.max(initial=0))

    def endings(self) -> Endings:
        """Everything so far."""
        items, answers = self._workload.item, self._answers
        known = answers is not None and items is not None
        return Endings(
            self._ending,
            self._variant,
            self._done,
            self._answered,
            worth=self._worth if known else None,
            right=rights(answers, self._workload, self._names, self._variant),
            escalated=self._escalated,
        )

    def result(self, policy: str, effort: Effort, *, from_ns: int) -> SimResult:
        """The figures of a run under this policy, over what arrived from `from_ns` on."""
        candidates, beaten = self._table.candidates, self._table.dominated
        return reduce(
            policy,
            self._workload.arrived_ns,
            self.endings(),
            self._names,
            [candidate.quality for candidate in candidates],
            effort,
            best=next(k for k, c in enumerate(candidates) if c.name not in beaten),
            from_ns=from_ns,
        )


def rights(
    answers: Answers | None, workload: Workload, names: Sequence[str], variant: NDArray[np.int16]
) -> NDArray[np.bool_] | None:
    """Which requests were answered right by the variants with these numbers; None if unknown.

    ValueError names a variant that answered and of which no answers were recorded.
    """
    if answers is None or workload.item is None:
        return None
    right = np.zeros(len(variant), dtype=np.bool_)
    for number in np.unique(variant[variant >= 0]).tolist():
        mine = variant == number
        right[mine] = answers.right([names[number]])[workload.item[mine], 0]
    return right
