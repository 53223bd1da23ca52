"""The requests that wait in one pool: in which order, and how much work they are. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from controlplane.policy.batching import MISSES, pays
from controlplane.policy.edf import EdfQueue
from controlplane.policy.entries import Entry
from controlplane.policy.ledgers import QueuedWork
from controlplane.policy.profiles import VariantTable
from controlplane.policy.records import Request

# How far behind the head a worker looks for a request that its variants can answer.
_SCAN = 64


class Line:
    """Earliest deadline first, or first come first served; `work` is what is queued, in ns.

    A subclass may order otherwise: it overrides what stands under "order".
    """

    def __init__(self, table: VariantTable, capacity: int, by_deadline: bool) -> None:
        self.work = QueuedWork(len(table))
        self.count = 0
        self._table = table
        self._by_deadline = by_deadline
        self._queue: EdfQueue[Entry] = EdfQueue(capacity)

    # --- order ----------------------------------------------------------------------

    def head(self) -> Entry | None:
        """The entry whose turn it is; None when nobody waits."""
        return self._queue.head()

    def after_head(self, limit: int) -> Iterator[Entry]:
        """At most `limit` entries behind the head, in order; nothing may change meanwhile."""
        return self._queue.after_head(limit)

    def entries(self) -> Iterator[Entry]:
        """Every entry, in no order."""
        return self._queue.items()

    @property
    def garbage(self) -> int:
        """Dead entries that are still kept."""
        return self._queue.garbage

    def _put(self, entry: Entry, key: int) -> bool:
        return self._queue.push(key, entry.request.id, entry)

    def _take_out(self, request_id: int) -> Entry | None:
        return self._queue.cancel(request_id)

    # --- counting -------------------------------------------------------------------

    def nominal(self, request: Request) -> list[int]:
        """Uncorrected predictions of the request's eligible variants at its price, in ns."""
        return self._table.nominal_ns(request, request.eligible)

    def push(self, request: Request, nominal: list[int], best: int) -> bool:
        """Queue a request; False, and nothing changed, when the line is full."""
        eligible = request.eligible
        least = min(nominal)
        fastest = eligible[nominal.index(least)]
        mask = 0
        for number in eligible:
            mask |= 1 << number
        return self.adopt(Entry(request, nominal, fastest, least, mask, best))

    def adopt(self, entry: Entry) -> bool:
        """Queue an entry of another line with the same table; False when this one is full."""
        request = entry.request
        key = request.deadline_ns if self._by_deadline else request.arrived_ns
        if not self._put(entry, key):
            return False
        self.count += 1
        self.work.add(request.deadline_ns, entry.fastest, entry.fastest_ns)
        return True

    def remove(self, request_id: int) -> Entry | None:
        """Take a request out wherever it stands; None when it does not wait here."""
        entry = self._take_out(request_id)
        if entry is not None:
            self.count -= 1
            self.work.remove(entry.request.deadline_ns, entry.fastest, entry.fastest_ns)
        return entry

    def close(self) -> None:
        """The line is not used again, but for looking at its entries."""

    def first(self, limit: int) -> Iterator[Entry]:
        """The head and those behind it, `limit` in all."""
        head = self.head()
        if head is not None:
            yield head
            yield from self.after_head(limit - 1)

    def has_company(self, number: int, limit: int) -> bool:
        """Whether sharing a run of this variant pays for any that `batching.grow` would come to.

        Short requests stand mostly among longer ones: their sizes alone say that none joins.
        """
        candidate = self._table.candidates[number]
        profile, tokenizer = candidate.profile, candidate.tokenizer
        left = MISSES
        for entry in self.first(2 * limit):
            if entry.mask >> number & 1:
                if pays(profile, entry.request.shapes[tokenizer]):
                    return True
                left -= 1
                if not left:
                    return False
        return False

    def runnable(self, mask: int) -> Iterator[Entry]:
        """The entries, in order, that a worker with these variants can answer."""
        head = self.head()
        if head is None:
            return
        if head.mask & mask:
            yield head
        for entry in self.after_head(_SCAN):
            if entry.mask & mask:
                yield entry

    def violations(self) -> list[str]:
        """Every way in which the counts disagree with what waits; empty when sound."""
        entries = list(self.entries())
        per_variant = [0] * len(self._table)
        for entry in entries:
            per_variant[entry.fastest] += entry.fastest_ns
        found = []
        if self.count != len(entries):
            found.append(f"counts {self.count} queued, holds {len(entries)}")
        if self.work.per_variant != per_variant or self.work.total != sum(per_variant):
            found.append(f"keeps {self.work.per_variant}, queued {per_variant}")
        if self.garbage > len(entries) + 65:
            found.append(f"{self.garbage} dead entries, {len(entries)} alive")
        return found
