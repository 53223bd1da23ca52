"""A bounded priority queue with cancellation: earliest key first, then lowest id."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")

# Below this many dead entries a rebuild costs more than it frees.
_TOLERATED_GARBAGE = 64


class EdfQueue(Generic[T]):
    """Items by absolute deadline; push, pop and cancel are O(log n) amortised.

    The key is a deadline in ns for earliest-deadline-first and an arrival time for
    first-come-first-served; ids grow with arrival, so ties keep arrival order. The bound
    is exact: cancelled items leave the count at once. Dead heap entries never outnumber
    the living by more than a constant.

    Nobody starves: a key is absolute and never changes, so an item is only ever passed
    over by items with earlier deadlines, and none of those can arrive after its own
    deadline; by then it has been answered or has expired.
    """

    __slots__ = ("_capacity", "_heap", "_items", "_pushes")

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        # Key, id, and the number of the push, which tells a living entry from a dead one
        # with the same id.
        self._heap: list[tuple[int, int, int]] = []
        self._items: dict[int, tuple[int, int, T]] = {}
        self._pushes = 0

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, item_id: int) -> bool:
        return item_id in self._items

    @property
    def full(self) -> bool:
        """True when a push would break the bound."""
        return len(self._items) >= self._capacity

    @property
    def garbage(self) -> int:
        """Dead entries that the heap still holds."""
        return len(self._heap) - len(self._items)

    def push(self, key: int, item_id: int, item: T) -> bool:
        """Add an item; False, and nothing added, when the queue is full."""
        items = self._items
        if len(items) >= self._capacity:
            return False
        if item_id in items:
            raise ValueError(f"item {item_id} is queued already")
        self._pushes += 1
        items[item_id] = (key, self._pushes, item)
        heapq.heappush(self._heap, (key, item_id, self._pushes))
        return True

    def head(self) -> T | None:
        """The item that `pop` would give, left where it is."""
        heap, items = self._heap, self._items
        while heap:
            _, item_id, push = heap[0]
            found = items.get(item_id)
            if found is not None and found[1] == push:
                return found[2]
            heapq.heappop(heap)
        return None

    def head_key(self) -> int | None:
        """Key of the head."""
        return self._heap[0][0] if self.head() is not None else None

    def pop(self) -> T | None:
        """Take the item with the earliest key; None when empty."""
        head = self.head()
        if head is not None:
            del self._items[heapq.heappop(self._heap)[1]]
        return head

    def cancel(self, item_id: int) -> T | None:
        """Take an item out wherever it stands; None when it is not queued."""
        found = self._items.pop(item_id, None)
        if found is None:
            return None
        if len(self._heap) - 2 * len(self._items) > _TOLERATED_GARBAGE:
            self._heap = [(key, each, push) for each, (key, push, _) in self._items.items()]
            heapq.heapify(self._heap)
        return found[2]

    def after_head(self, limit: int) -> Iterator[T]:
        """The items behind the head in order, at most `limit` of them.

        The heap is walked, not changed: O(m log m) for the m entries, living or dead, that
        are met. The queue must not change while the walk goes on.
        """
        if self.head() is None:
            return
        heap, items = self._heap, self._items
        frontier = [(heap[0], 0)]
        given = -1
        while frontier and given < limit:
            _, at = heapq.heappop(frontier)
            _, item_id, push = heap[at]
            for child in (2 * at + 1, 2 * at + 2):
                if child < len(heap):
                    heapq.heappush(frontier, (heap[child], child))
            found = items.get(item_id)
            if found is None or found[1] != push:
                continue
            given += 1
            if given:
                yield found[2]

    def items(self) -> Iterator[T]:
        """Every queued item, in no order."""
        return iter([item for _, _, item in self._items.values()])
