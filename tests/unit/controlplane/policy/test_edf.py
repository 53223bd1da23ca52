"""The queue against a sorted list, and its bounds."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from controlplane.policy.edf import EdfQueue


class EdfAgainstSortedList(RuleBasedStateMachine):
    """Whatever is pushed, popped and cancelled, the queue behaves as a sorted list."""

    CAPACITY = 40

    def __init__(self) -> None:
        super().__init__()
        self.queue: EdfQueue[int] = EdfQueue(self.CAPACITY)
        self.model: dict[int, int] = {}
        self.last = 0

    def _order(self) -> list[int]:
        return [i for _, i in sorted((key, i) for i, key in self.model.items())]

    @rule(key=st.integers(0, 9))
    def push(self, key: int) -> None:
        self.last += 1
        fits = len(self.model) < self.CAPACITY
        assert self.queue.push(key, self.last, self.last) == fits
        if fits:
            self.model[self.last] = key

    @rule(data=st.data())
    def push_again_what_was_cancelled(self, data: st.DataObject) -> None:
        if not self.model:
            return
        item = data.draw(st.sampled_from(sorted(self.model)))
        assert self.queue.cancel(item) == item
        assert self.queue.push(self.model[item], item, item)

    @rule()
    def pop(self) -> None:
        order = self._order()
        assert self.queue.pop() == (order[0] if order else None)
        if order:
            del self.model[order[0]]

    @rule(item=st.integers(1, 60))
    def cancel(self, item: int) -> None:
        assert self.queue.cancel(item) == (item if item in self.model else None)
        self.model.pop(item, None)

    @rule(limit=st.integers(0, 50))
    def walk(self, limit: int) -> None:
        assert list(self.queue.after_head(limit)) == self._order()[1 : limit + 1]

    @invariant()
    def agrees(self) -> None:
        order = self._order()
        assert len(self.queue) == len(order)
        assert self.queue.head() == (order[0] if order else None)
        assert self.queue.head_key() == (self.model[order[0]] if order else None)
        assert self.queue.garbage <= len(order) + 65
        assert sorted(self.queue.items()) == sorted(order)


TestEdfAgainstSortedList = EdfAgainstSortedList.TestCase
TestEdfAgainstSortedList.settings = settings(max_examples=60, deadline=None)


def test_the_bound_is_exact() -> None:
    queue: EdfQueue[str] = EdfQueue(2)
    assert queue.push(5, 1, "a")
    assert queue.push(3, 2, "b")
    assert not queue.push(1, 3, "c")
    assert queue.full
    queue.cancel(1)
    assert queue.push(1, 3, "c")
    assert not queue.push(1, 4, "d")
    assert [queue.pop(), queue.pop(), queue.pop()] == ["c", "b", None]


def test_an_item_is_not_queued_twice() -> None:
    queue: EdfQueue[str] = EdfQueue(5)
    queue.push(1, 7, "a")
    with pytest.raises(ValueError, match="7"):
        queue.push(2, 7, "b")


def test_ten_thousand_cancels_leave_no_garbage() -> None:
    queue: EdfQueue[int] = EdfQueue(10_000)
    for item in range(10_000):
        queue.push(item % 97, item, item)
    for item in range(10_000):
        assert queue.cancel(item) == item
        assert queue.garbage <= len(queue) + 65
    assert len(queue) == 0
    assert queue.head() is None
    assert queue.garbage == 0


@given(
    patient=st.integers(100, 1000),
    spans=st.lists(st.integers(1, 300), min_size=1, max_size=80),
)
def test_nobody_is_passed_over_after_its_own_deadline(patient: int, spans: list[int]) -> None:
    """Case 7: newcomers, one at a time, each with its own span, cannot starve an item."""
    queue: EdfQueue[int] = EdfQueue(1000)
    queue.push(patient, 0, 0)
    for now, span in enumerate(spans, start=1):
        queue.push(now + span, now, now)
        if now > patient:
            assert queue.head_key() is not None
            first = queue.head()
            assert first == 0 or (queue.head_key() or 0) <= patient
        elif queue.head() != 0:
            queue.pop()
