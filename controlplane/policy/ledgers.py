"""Running sums of work, so that a decision costs the same whatever waits and runs."""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort

# 64 blocks of 128 slots of about 2.1 ms: deadlines up to 17 s ahead are told apart.
_SLOT_BITS = 21
_BLOCK_BITS = 7
_SLOTS = 1 << 13
_MASK = _SLOTS - 1

# With more workers than this the mean residual is as good as each one.
_MOST_LEVELS = 64

# An overdue run is taken to need this share of its prediction more.
OVERDUE_SHARE = 0.05


class QueuedWork:
    """Nominal work of queued requests, each on its fastest eligible variant, in ns.

    Sums per variant make the corrected total O(variants); sums per deadline slot and per
    block of slots give the share that is due before a deadline from two short slices,
    and take two additions to keep. Sums are integers, so they come back to exactly zero.
    """

    __slots__ = ("_blocks", "_slots", "per_variant", "total")

    def __init__(self, variants: int) -> None:
        self.per_variant = [0] * variants
        self.total = 0
        self._slots = [0] * _SLOTS
        self._blocks = [0] * (_SLOTS >> _BLOCK_BITS)

    def add(self, deadline_ns: int, variant: int, nominal_ns: int) -> None:
        """A request is queued; its fastest eligible variant is `variant`."""
        self.per_variant[variant] += nominal_ns
        self.total += nominal_ns
        slot = (deadline_ns >> _SLOT_BITS) & _MASK
        self._slots[slot] += nominal_ns
        self._blocks[slot >> _BLOCK_BITS] += nominal_ns

    def remove(self, deadline_ns: int, variant: int, nominal_ns: int) -> None:
        """The request left the queue; arguments as they were given to `add`."""
        self.add(deadline_ns, variant, -nominal_ns)

    def corrected(self, factors: list[float]) -> float:
        """Σ over queued requests of nominal service on the fastest variant times its m."""
        total = 0.0
        for work, factor in zip(self.per_variant, factors, strict=True):
            if work:
                total += work * factor
        return total

    def due_by(self, deadline_ns: int, now_ns: int) -> int:
        """Nominal work queued with deadlines up to and including this one's slot.

        Deadlines more than a turn of the ring (17 s) ahead count as the last slot.
        """
        first = now_ns >> _SLOT_BITS
        last = min(deadline_ns >> _SLOT_BITS, first + _SLOTS - 1)
        if last < first:
            return 0
        low, high = first & _MASK, last & _MASK
        if low <= high:
            return self._prefix(high) - (self._prefix(low - 1) if low else 0)
        return self.total - (self._prefix(low - 1) - self._prefix(high))

    def _prefix(self, slot: int) -> int:
        block = slot >> _BLOCK_BITS
        return sum(self._blocks[:block]) + sum(self._slots[block << _BLOCK_BITS : slot + 1])


class BusyWork:
    """Σ over runs of `max(p - elapsed, 0.05 p)` plus runs that wait on a worker, in ns.

    O(log runs) amortised: a run moves from the shrinking group to the overdue group at
    most once, when the sum is asked for at a later time.
    """

    __slots__ = ("_ends", "_overdue", "_overdue_sum", "_running", "_shrinking_ends", "_waiting")

    def __init__(self) -> None:
        self._waiting = 0
        # Batch id -> (end of its shrinking, predicted service) while shrinking.
        self._running: dict[int, tuple[int, int]] = {}
        self._shrinking_ends = 0
        self._ends: list[tuple[int, int]] = []
        self._overdue: dict[int, int] = {}
        self._overdue_sum = 0

    def __len__(self) -> int:
        """Runs that have started and not ended."""
        return len(self._running) + len(self._overdue)

    def wait(self, predicted_ns: int) -> None:
        """A run is handed to a worker that is busy."""
        self._waiting += predicted_ns

    def unwait(self, predicted_ns: int) -> None:
        """A waiting run starts or is gone."""
        self._waiting -= predicted_ns

    def start(self, batch_id: int, predicted_ns: int, started_ns: int) -> None:
        """A run starts."""
        end = started_ns + predicted_ns
        self._running[batch_id] = (end, predicted_ns)
        self._shrinking_ends += end
        overdue_at = end - int(OVERDUE_SHARE * predicted_ns)
        heapq.heappush(self._ends, (overdue_at, batch_id))

    def stop(self, batch_id: int) -> None:
        """A run ended, however it did."""
        running = self._running.pop(batch_id, None)
        if running is not None:
            self._shrinking_ends -= running[0]
        else:
            self._overdue_sum -= self._overdue.pop(batch_id)

    def residual_ns(self, now_ns: int) -> float:
        """Work that the workers still have before them."""
        ends = self._ends
        while ends and ends[0][0] <= now_ns:
            batch_id = heapq.heappop(ends)[1]
            running = self._running.pop(batch_id, None)
            if running is not None:
                self._shrinking_ends -= running[0]
                share = int(OVERDUE_SHARE * running[1])
                self._overdue[batch_id] = share
                self._overdue_sum += share
        shrinking = self._shrinking_ends - len(self._running) * now_ns
        return self._waiting + shrinking + self._overdue_sum


class FreeTimes:
    """When the busy workers of a pool will have done what they hold, as times in order.

    The wait of a newcomer is the level to which the work queued before it fills the
    workers, each of which is already filled to its own free time.
    """

    __slots__ = ("_sum", "_times")

    def __init__(self) -> None:
        self._times: list[int] = []
        self._sum = 0

    def __len__(self) -> int:
        return len(self._times)

    def add(self, free_ns: int) -> None:
        """A worker got something to do."""
        insort(self._times, free_ns)
        self._sum += free_ns

    def remove(self, free_ns: int) -> None:
        """The time of a worker changed or it became idle."""
        del self._times[bisect_left(self._times, free_ns)]
        self._sum -= free_ns

    def wait_ns(self, queued_ns: float, workers: int, now_ns: int) -> float:
        """The level w with `Σ_i max(0, w - r_i) = queued` over all workers' residuals r_i.

        Without queued work that is the least residual; with much, `(Σ r + queued) / c`.
        """
        times = self._times
        if not times or workers < 1:
            return queued_ns / max(1, workers)
        count = workers - len(times)
        everything = (queued_ns + self._sum - len(times) * now_ns) / workers
        if everything >= times[-1] - now_ns:
            return max(0.0, everything)
        filled = queued_ns
        for time in times[:_MOST_LEVELS]:
            residual = max(0, time - now_ns)
            if count and filled <= residual * count:
                return filled / count
            count += 1
            filled += residual
        return max(0.0, everything) if len(times) > _MOST_LEVELS else filled / count


def remaining_ns(predicted_ns: int, started_ns: int, now_ns: int) -> int:
    """Residual of one run: `max(p - elapsed, 0.05 p)`."""
    return max(predicted_ns - (now_ns - started_ns), int(OVERDUE_SHARE * predicted_ns))
