"""A pool's queue when there are tenants: fair between them, by deadline inside that. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from controlplane.policy.edf import EdfQueue
from controlplane.policy.entries import Entry
from controlplane.policy.line import Line
from controlplane.policy.profiles import VariantTable
from controlplane.policy.tenancy.accounts import Account, Section
from controlplane.policy.tenancy.clocks import Clock, Turn, pick
from controlplane.policy.tenancy.tenancy import Tenancy


class Strand(Turn):
    """What waits here of one class of one tenant, with its work by variant."""

    __slots__ = ("per_variant", "queue", "section")

    def __init__(self, section: Section, capacity: int, variants: int) -> None:
        super().__init__(section.account.clock, section.clock)
        self.section = section
        self.queue: EdfQueue[Entry] = EdfQueue(capacity)
        self.per_variant = [0] * variants

    def settle(self) -> bool:
        """Take the head's place among others; False when nobody waits here."""
        head, key = self.queue.head(), self.queue.head_key()
        if head is None or key is None:
            return False
        self.key, self.number = key, head.request.id
        return True


class _Walk(Turn):
    """A strand that is walked, on clocks of its own."""

    __slots__ = ("entry", "rest")

    def __init__(self, tenant: Clock, clock: Clock, strand: Strand, limit: int) -> None:
        super().__init__(tenant, clock)
        self.key, self.number = strand.key, strand.number
        self.entry = strand.queue.head()
        self.rest = strand.queue.after_head(limit)

    def forward(self, by_deadline: bool) -> bool:
        """Serve the entry and come to the next; False when there is none."""
        assert self.entry is not None
        self.tenant.serve(self.entry.fastest_ns)
        self.clock.serve(self.entry.fastest_ns)
        self.entry = next(self.rest, None)
        if self.entry is None:
            return False
        request = self.entry.request
        self.key = request.deadline_ns if by_deadline else request.arrived_ns
        self.number = request.id
        return True


class FairLine(Line):
    """A queue for each class of each tenant that waits, and a turn for each (`clocks.pick`).

    Operations are O(log n) in the requests that wait and linear in the tenants and classes
    that do.
    """

    def __init__(
        self, table: VariantTable, capacity: int, by_deadline: bool, tenancy: Tenancy
    ) -> None:
        super().__init__(table, capacity, by_deadline)
        self.tenancy = tenancy
        self._capacity = capacity
        self._strands: dict[Section, Strand] = {}
        self._strand_of: dict[int, Strand] = {}
        # The head and the tenancy's version that it was found at.
        self._head: Strand | None = None
        self._head_version = -1

    def head(self) -> Entry | None:
        """The entry whose turn it is; None when nobody waits."""
        strand = self._first()
        return None if strand is None else strand.queue.head()

    def head_time(self) -> float:
        """Virtual time of the tenant whose turn it is; somebody must wait."""
        strand = self._first()
        assert strand is not None
        return strand.tenant.time

    def after_head(self, limit: int) -> Iterator[Entry]:
        """The entries behind the head as they would be served, each for its fastest prediction."""
        clocks: dict[Clock, Clock] = {}
        walks: list[_Walk] = []
        for strand in self._strands.values():
            tenant = clocks.get(strand.tenant)
            if tenant is None:
                tenant = clocks[strand.tenant] = Clock(strand.tenant.share, strand.tenant.time)
            clock = Clock(strand.clock.share, strand.clock.time)
            walks.append(_Walk(tenant, clock, strand, limit))
        given = -1
        while walks and given < limit:
            walk = pick(walks, self.tenancy.bound_ns)
            assert isinstance(walk, _Walk)
            entry = walk.entry
            assert entry is not None
            if not walk.forward(self._by_deadline):
                walks.remove(walk)
            given += 1
            if given:
                yield entry

    def entries(self) -> Iterator[Entry]:
        """Every entry, in no order."""
        for strand in self._strands.values():
            yield from strand.queue.items()

    @property
    def garbage(self) -> int:
        """Dead entries that are still kept, but for those every queue may keep."""
        return sum([max(0, strand.queue.garbage - 65) for strand in self._strands.values()])

    def add_waiting(self, into: dict[Account, tuple[float, int]], factors: list[float]) -> None:
        """Add who waits here, with the corrected work and the number of their requests."""
        for section, strand in self._strands.items():
            work = 0.0
            for nominal, factor in zip(strand.per_variant, factors, strict=True):
                if nominal:
                    work += nominal * factor
            before = into.get(section.account, (0.0, 0))
            into[section.account] = (before[0] + work, before[1] + len(strand.queue))

    def close(self) -> None:
        """Nobody waits here any more as far as the tenants count."""
        for entry in self.entries():
            section = self._strand_of[entry.request.id].section
            self.tenancy.leave(section, entry.fastest_ns)

    def _put(self, entry: Entry, key: int) -> bool:
        if self.count >= self._capacity:
            return False
        section = self.tenancy.section(entry.request.klass)
        strand = self._strands.get(section)
        if strand is None:
            variants = len(self.work.per_variant)
            strand = self._strands[section] = Strand(section, self._capacity, variants)
        strand.queue.push(key, entry.request.id, entry)
        strand.per_variant[entry.fastest] += entry.fastest_ns
        strand.settle()
        self._strand_of[entry.request.id] = strand
        self.tenancy.enter(section, entry.fastest_ns)
        self._head_version = -1
        return True

    def _take_out(self, request_id: int) -> Entry | None:
        strand = self._strand_of.pop(request_id, None)
        if strand is None:
            return None
        entry = strand.queue.cancel(request_id)
        assert entry is not None
        strand.per_variant[entry.fastest] -= entry.fastest_ns
        if not strand.settle():
            del self._strands[strand.section]
        self.tenancy.leave(strand.section, entry.fastest_ns)
        self._head_version = -1
        return entry

    def _first(self) -> Strand | None:
        version = self.tenancy.version
        if self._head_version != version:
            turn = pick(list(self._strands.values()), self.tenancy.bound_ns)
            assert turn is None or isinstance(turn, Strand)
            self._head, self._head_version = turn, version
        return self._head
