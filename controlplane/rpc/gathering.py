"""Whether messages of a busy stream wait for those behind them, to be taken together.

Each message that is taken by itself finds caches cold, makes a run and wakes three processes; those
that are taken together share all that. Network cards do so with their interrupts
(docs/decisions/0091-messages-in-company.md). Pure: times are ns of one clock.
"""

from __future__ import annotations

from typing import Final

# So many leave without waiting longer.
MOST_GATHERED: Final = 32
# Of the time that requests of the stream lately had, a wait takes no more than this share.
_SHARE: Final = 20
# Timers of the loop count whole milliseconds.
_LEAST_NS: Final = 1_000_000
# Gaps between messages are averaged over about so many; a pause counts as so many waits.
_WEIGHT: Final = 8
_PAUSE: Final = 4
# A trial compares so many messages that wait with so many that do not. Its outcome holds for so
# many; one against waiting for twice as many each time, up to the last number.
_TRIAL: Final = 256
_GATHERED: Final = 32 * _TRIAL
_LEFT_ALONE: Final = 4 * _TRIAL
_LONG_LEFT_ALONE: Final = 256 * _TRIAL
# Messages may come so much slower for it.
_SLOWER: Final = 1.2


class Gathering:
    """Of one stream. `most_ns` is the longest wait; 0 lets nobody wait.

    Messages wait only if at least two others are expected meanwhile, and if that does not keep a
    caller from sending: one that has a few requests in flight and then waits for their answers
    would lose time. So it is tried now and then how fast messages come with and without.
    """

    def __init__(self, most_ns: int) -> None:
        self._most_ns = most_ns
        self._last_ns = 0
        self._gap_ns = _PAUSE * most_ns
        self._left_ns = 1 << 62
        # The present phase: whether messages wait in it, how many it has left, their gaps.
        self._waits = False
        self._trying = True
        self._rest = _TRIAL
        self._sum_ns = 0
        self._alone_ns = 0
        self._left_alone = _LEFT_ALONE

    def came(self, now_ns: int) -> None:
        """A message is there."""
        gap = min(now_ns - self._last_ns, _PAUSE * self._most_ns)
        self._last_ns = now_ns
        self._gap_ns += (gap - self._gap_ns) // _WEIGHT
        self._sum_ns += gap
        self._rest -= 1
        if self._rest == 0:
            self._next_phase()

    def accepted(self, left_ns: int) -> None:
        """A request had so much time; the shortest counts, and is forgotten slowly."""
        if left_ns < self._left_ns:
            self._left_ns = left_ns
        else:
            self._left_ns += (left_ns - self._left_ns) // MOST_GATHERED

    def wait_ns(self) -> int:
        """How long a message that came now may wait for others; 0 when it is taken at once."""
        if not self._waits:
            return 0
        wait = min(self._most_ns, self._left_ns // _SHARE)
        return wait if wait >= _LEAST_NS and 2 * self._gap_ns <= wait else 0

    def _next_phase(self) -> None:
        """Without, with, then whichever is better for a while."""
        if not self._trying:
            self._waits, self._trying, self._rest = False, True, _TRIAL
        elif not self._waits:
            self._waits, self._rest, self._alone_ns = True, _TRIAL, self._sum_ns
        elif self._sum_ns <= _SLOWER * self._alone_ns:
            self._trying, self._rest, self._left_alone = False, _GATHERED, _LEFT_ALONE
        else:
            self._waits, self._trying, self._rest = False, False, self._left_alone
            self._left_alone = min(2 * self._left_alone, _LONG_LEFT_ALONE)
        self._sum_ns = 0
