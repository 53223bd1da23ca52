"""The door's margin: what widens and narrows it, and whom it concerns."""

import pytest

from controlplane.policy.door import DoorMargin
from controlplane.policy.hands import Flight
from controlplane.policy.records import Request, RequestClass
from controlplane.policy.scheduler import Scheduler, Shed
from tests.unit.controlplane.policy.world import FAST, MODEL, MS, request, scheduler

# Time for fifteen services of the fastest variant: the whole margin counts.
LONG_MS = 60.0


def door(made: Scheduler) -> DoorMargin:
    return made.pools[MODEL].door


def served(made: Scheduler, now_ns: int) -> Flight:
    flight = made.next_step(now_ns)
    assert isinstance(flight, Flight)
    return flight


def started(made: Scheduler, deadline_ms: float) -> Flight:
    assert made.offer(request(deadline_ms), 0).admitted
    return served(made, 0)


def tight(made: Scheduler) -> Request:
    """The last one whom the door lets in behind those that are queued."""
    last = offered = request(LONG_MS)
    while made.offer(offered, 0).admitted:
        last, offered = offered, request(LONG_MS)
    assert last.tightness > 0.9
    return last


def test_one_miss_in_a_hundred_leaves_the_margin_where_it_is() -> None:
    margin = DoorMargin()
    before = margin.factor
    margin.settle(0.9, on_time=False)
    assert margin.factor > before
    for _ in range(99):
        margin.settle(0.9, on_time=True)
    assert margin.factor == pytest.approx(before)


def test_the_margin_keeps_between_one_and_three() -> None:
    margin = DoorMargin()
    for _ in range(10_000):
        margin.settle(1.0, on_time=True)
    assert margin.factor == 1.0
    for _ in range(100):
        margin.settle(1.0, on_time=False)
    assert margin.factor == 3.0


DEEP = (60 * MS, 40 * MS, 10)


def test_who_has_a_price_gives_way_while_others_are_refused() -> None:
    margin = DoorMargin()
    usual = margin.stretch(*DEEP)
    assert margin.stretch(*DEEP, price=2.0) == usual
    for _ in range(10):
        margin.told(1.0, refused=True)
    assert margin.way == pytest.approx(0.5)
    assert margin.stretch(*DEEP) == usual
    assert margin.stretch(*DEEP, price=2.0) == pytest.approx(1.5 * usual)
    assert margin.stretch(*DEEP, price=3.0) == pytest.approx(2.0 * usual)
    # As everybody's margin it counts only where a deadline has many services.
    assert margin.stretch(12 * MS, 40 * MS, 10, price=3.0) == 1.0


def test_one_refusal_in_a_hundred_leaves_the_way_where_it_is() -> None:
    margin = DoorMargin()
    for number in range(5_000):
        margin.told(1.0, refused=number < 4 or number % 100 == 0)
    assert margin.way == pytest.approx(0.2, abs=0.06)
    for _ in range(5_000):
        margin.told(1.0, refused=False)
    assert margin.way == 0.0
    for _ in range(100):
        margin.told(1.0, refused=True)
    assert margin.way == 1.0
    # What the dear ones hear moves nothing.
    margin.told(2.0, refused=False)
    assert margin.way == 1.0


def test_who_was_let_in_less_often_than_its_price_says_gives_no_way() -> None:
    margin = DoorMargin()
    usual = margin.stretch(*DEEP)
    for _ in range(20):
        margin.told(1.0, refused=True)
        margin.told(1.0, refused=False)
        margin.told(2.0, refused=False)
    assert margin.stretch(*DEEP, price=2.0) > usual
    for _ in range(200):
        margin.told(2.0, refused=True)
    assert margin.stretch(*DEEP, price=2.0) == usual
    # At a higher price its part is smaller yet, but none is nothing.
    assert margin.stretch(*DEEP, price=4.0) == usual


def test_who_had_time_to_spare_says_nothing_about_the_door() -> None:
    margin = DoorMargin()
    before = margin.factor
    margin.settle(0.4, on_time=False)
    margin.settle(0.4, on_time=True)
    assert margin.factor == before


def test_where_few_services_fit_a_deadline_there_is_no_margin() -> None:
    margin = DoorMargin()
    assert margin.stretch(7 * MS, 10.0 * MS, 10) == 1.0
    half = margin.stretch(21 * MS, 20.0 * MS, 10)
    assert half == pytest.approx(1.0 + (margin.factor - 1.0) / 2)
    assert margin.stretch(14 * MS, 10.0 * MS, 10) == margin.factor
    assert margin.stretch(140 * MS, 10.0 * MS, 10) == margin.factor
    assert margin.stretch(140 * MS, 0.0, 0) == 1.0


@pytest.mark.parametrize("policy", ["price", "orchid", "early", "accurate", "published-adaptive"])
def test_the_margin_refuses_earlier_but_not_under_comparison_policies_that_have_none(
    policy: str,
) -> None:
    def admitted(factor: float) -> int:
        made = scheduler(policy=policy)
        door(made).factor = factor
        pinned = RequestClass(variant=FAST.name)
        return sum(made.offer(request(LONG_MS, klass=pinned), 0).admitted for _ in range(40))

    ours = policy in ("price", "orchid", "early")
    assert (admitted(2.0) < admitted(1.0)) is ours


def test_a_refusal_says_when_the_stretched_wait_will_have_passed() -> None:
    made = scheduler()
    door(made).factor = 1.0
    tight(made)
    narrow = made.offer(request(LONG_MS), 0)
    door(made).factor = 2.0
    wide = made.offer(request(LONG_MS), 0)
    assert 1 <= narrow.retry_after_ms <= 8
    assert wide.retry_after_ms == pytest.approx(narrow.retry_after_ms + 52, abs=8)
    assert wide.completion_ns > narrow.completion_ns > LONG_MS * MS


def test_a_run_that_ends_late_widens_the_margin_and_one_in_time_narrows_it() -> None:
    made = scheduler(prefetch=0)
    flight = started(made, 100.0)
    before = door(made).factor
    made.finished(flight.worker, flight.id, 9 * MS, run_ns=9 * MS)
    assert door(made).factor == before, "it had time to spare"
    hurried = tight(made)
    now = 9 * MS
    flight = served(made, now)
    while hurried not in flight.requests:
        made.finished(flight.worker, flight.id, now, run_ns=flight.nominal_ns)
        flight = served(made, now)
    before = door(made).factor
    made.finished(flight.worker, flight.id, hurried.deadline_ns + 1, run_ns=4 * MS)
    assert door(made).factor > before


def test_who_is_dropped_or_expires_in_the_queue_missed() -> None:
    made = scheduler(prefetch=0)
    started(made, 100.0)
    hurried = tight(made)
    before = door(made).factor
    assert made.withdraw(hurried, 0), "its caller left"
    assert door(made).factor == before
    hurried = tight(made)
    assert made.withdraw(hurried, hurried.deadline_ns), "its time was up"
    assert door(made).factor > before
    door(made).factor = 1.0
    tight(made)
    made.set_worker(2, {MODEL: frozenset(made.pools[MODEL].table.numbers)}, 59 * MS)
    shed = 0
    while isinstance(made.next_step(59 * MS), Shed):
        shed += 1
    assert shed > 1
    assert door(made).factor > 1.05
