"""Which messages of a stream wait for others: not those that few follow, nor a caller they stop."""

from __future__ import annotations

from itertools import pairwise, repeat

from controlplane.rpc.gathering import Gathering

MS = 1_000_000
# More than the gaps that are averaged, fewer than a trial.
SOME = 100


class Caller:
    """Sends a message every `gap` or, while its messages wait, every `waiting` ns."""

    def __init__(self, most_ns: int = 2 * MS, left_ns: int = 1000 * MS) -> None:
        self.gathering = Gathering(most_ns)
        self.gathering.accepted(left_ns)
        self.now = 0

    def send(self, count: int, gap: int, waiting: int = 0) -> list[int]:
        """What each of these messages waits."""
        waits: list[int] = []
        for _ in repeat(None, count):
            waited = waiting if waits and waits[-1] else 0
            self.now += waited or gap
            self.gathering.came(self.now)
            waits.append(self.gathering.wait_ns())
        return waits

    def until_they_wait(self, gap: int, waiting: int = 0) -> int:
        """How many messages come before the first one that waits."""
        for number in range(200_000):
            if self.send(1, gap, waiting)[0]:
                return number
        raise AssertionError("none waits")


def test_messages_that_come_fast_wait_once_that_was_tried() -> None:
    caller = Caller()
    assert not any(caller.send(SOME, MS // 4))
    assert caller.until_they_wait(MS // 4) >= SOME
    assert set(caller.send(2000, MS // 4)) == {2 * MS}


def test_messages_with_few_behind_them_are_taken_at_once() -> None:
    caller = Caller()
    assert not any(caller.send(5000, MS + MS // 100))
    # Faster ones of the same stream do wait, and no more once it is slow again.
    caller.until_they_wait(MS // 4)
    assert caller.send(SOME, 3 * MS)[-1] == 0


def test_a_caller_that_is_kept_from_sending_is_left_alone_for_longer_each_time() -> None:
    caller = Caller()
    fast, slowed = MS // 4, MS

    def left_alone() -> int:
        caller.until_they_wait(fast, slowed)
        # The trial ends; then come those that do not wait.
        trial = caller.send(300, fast, slowed)
        assert trial[0]
        assert not trial[-1]
        return caller.until_they_wait(fast, slowed)

    periods = [left_alone() for _ in range(4)]
    assert all(later > 1.5 * earlier for earlier, later in pairwise(periods))


def test_a_caller_that_sends_as_before_goes_on_waiting_but_for_the_next_trial() -> None:
    caller = Caller()
    caller.until_they_wait(MS // 4)
    waits = caller.send(10_000, MS // 4, MS // 4)
    assert 0.9 < sum(map(bool, waits)) / len(waits) < 1.0


def test_a_wait_takes_a_twentieth_of_the_shortest_time_at_most() -> None:
    caller = Caller(left_ns=30 * MS)
    caller.until_they_wait(MS // 8)
    assert caller.gathering.wait_ns() == 30 * MS // 20
    caller.gathering.accepted(10 * MS)
    # Half a millisecond is less than the loop's timers can count.
    assert caller.gathering.wait_ns() == 0
    for _ in range(500):
        caller.gathering.accepted(1000 * MS)
    assert caller.gathering.wait_ns() == 2 * MS


def test_nobody_waits_where_that_is_not_wanted() -> None:
    caller = Caller(most_ns=0)
    assert not any(caller.send(2000, MS // 8))
    assert not any(caller.send(2000, 1))
