"""Who writes longer than usual gives way at a worker's door while others are refused."""

from __future__ import annotations

import pytest

from tests.unit.worker.scheduling.arena import MS, World, arrival
from worker.scheduling.giving_way import GivingWay
from worker.scheduling.records import Refused
from worker.scheduling.sequences import DecodeSequence


def newcomer(price: float = 1.0, account: str = "") -> DecodeSequence:
    made = arrival(0, prompt=16, work_price=price, account=account)
    return DecodeSequence(made, limit=8, order=0)


def test_refusals_of_usual_ones_make_dear_ones_leave_room() -> None:
    giving = GivingWay()
    assert giving.room_ns(newcomer(2.0), 100.0) == 0.0
    giving.told(newcomer(), refused=True)
    giving.told(newcomer(), refused=True)
    assert giving.room_ns(newcomer(), 100.0) == 0.0
    assert giving.room_ns(newcomer(2.0), 100.0) == pytest.approx(50.0)
    assert giving.room_ns(newcomer(3.0), 100.0) == pytest.approx(100.0)
    # Who need not wait leaves none, and nobody does for another account.
    assert giving.room_ns(newcomer(2.0), -5.0) == 0.0
    assert giving.room_ns(newcomer(2.0, "other"), 100.0) == 0.0


def test_one_refusal_in_a_hundred_leaves_the_way_where_it_is() -> None:
    giving = GivingWay()
    for number in range(2000):
        giving.told(newcomer(), refused=number < 2 or number % 100 == 0)
    assert giving.room_ns(newcomer(2.0), 100.0) == pytest.approx(50.0, abs=26.0)
    for _ in range(1000):
        giving.told(newcomer(), refused=False)
    assert giving.room_ns(newcomer(2.0), 100.0) == 0.0


def test_who_was_let_in_less_often_than_his_price_says_gives_no_way() -> None:
    giving = GivingWay()
    for _ in range(10):
        giving.told(newcomer(), refused=True)
        giving.told(newcomer(), refused=False)
    assert giving.room_ns(newcomer(2.0), 100.0) > 0.0
    for _ in range(200):
        giving.told(newcomer(2.0), refused=True)
    assert giving.room_ns(newcomer(2.0), 100.0) == 0.0


def test_a_flood_of_accounts_is_not_remembered() -> None:
    giving = GivingWay()
    giving.told(newcomer(), refused=True)
    for number in range(300):
        giving.told(newcomer(account=f"a{number}"), refused=True)
    assert giving.room_ns(newcomer(2.0), 100.0) == 0.0
    assert giving.room_ns(newcomer(2.0, "a299"), 100.0) > 0.0


def refused(world: World, number: int, price: float) -> bool:
    try:
        world.submit(
            arrival(
                number,
                prompt=250,
                arrived_ns=world.now_ns,
                first_token_target_ns=2000 * MS,
                work_price=price,
            )
        )
    except Refused:
        return True
    return False


def test_at_the_door_dear_ones_are_refused_before_the_others_are() -> None:
    world, there = World(blocks=512), 0
    # 375 ms each: five fit into 2 s, and the last one may as well be dear.
    while not refused(world, there, 1.0 if there < 4 else 2.0):
        there += 1
    assert there == 5
    assert refused(world, 5, 1.0)
    world.drain()
    for number in range(6, 9):
        assert not refused(world, number, 1.0)
    # A quarter of the way: what waits counts for five quarters of itself.
    assert not refused(world, 9, 2.0)
    assert refused(world, 10, 2.0)
    assert not refused(world, 11, 1.0)
