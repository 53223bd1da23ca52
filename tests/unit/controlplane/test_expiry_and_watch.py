"""One timer for all deadlines, and the arithmetic of suspicion."""

import asyncio
from dataclasses import replace

from controlplane.expiry import Deadlines
from controlplane.policy.hands import Flight
from controlplane.policy.records import (
    Decision,
    DecisionKind,
    TensorPayload,
    TensorValue,
    carried_bytes,
)
from controlplane.watch import overdue_limit_ns, silence_limit_ns, suspicion
from tests.unit.controlplane.policy.world import BEST, MODEL, TABLE, scheduler
from tests.unit.controlplane.virtual_loop import VirtualLoop, run

MS = 1_000_000


def test_each_id_expires_at_its_deadline_and_only_if_it_is_still_held() -> None:
    async def expire() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        expired: list[tuple[int, float]] = []
        deadlines = Deadlines(
            loop, loop.now_ns, lambda i: expired.append((i, round(loop.time() * 1000, 1)))
        )
        deadlines.add(1, 50 * MS)
        deadlines.add(2, 20 * MS)
        deadlines.add(3, 70 * MS)
        deadlines.add(4, 10 * MS)
        deadlines.discard(4)
        deadlines.discard(99)
        await asyncio.sleep(0.03)
        deadlines.add(5, 40 * MS)
        await asyncio.sleep(0.1)
        assert expired == [(2, 20.0), (5, 40.0), (1, 50.0), (3, 70.0)]
        assert len(deadlines) == 0
        deadlines.close()

    run(expire())


def test_an_expiry_may_add_and_discard() -> None:
    async def expire() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        seen: list[int] = []

        def on_expiry(item: int) -> None:
            seen.append(item)
            if item == 1:
                deadlines.discard(2)
                deadlines.add(3, 15 * MS)

        deadlines = Deadlines(loop, loop.now_ns, on_expiry)
        deadlines.add(1, 10 * MS)
        deadlines.add(2, 10 * MS)
        await asyncio.sleep(0.02)
        assert seen == [1, 3]
        deadlines.close()

    run(expire())


def flight(predicted_ms: float, started_ms: float = 0.0) -> Flight:
    return Flight(
        id=1,
        worker=1,
        pool=scheduler().pools[MODEL],
        table=TABLE,
        candidate=BEST,
        decision=Decision(DecisionKind.RUN, 0, "", 0, 0.0, 0.0, False),
        requests=(),
        approximations=(),
        nominal_ns=int(predicted_ms * MS),
        predicted_ns=int(predicted_ms * MS),
        sigma=0.1,
        sent_ns=0,
        ahead_ns=0,
        chance=0.0,
        started_ns=int(started_ms * MS),
    )


def test_silence_is_suspect_after_three_services_or_three_reports() -> None:
    assert silence_limit_ns(None, 50) == 150 * MS
    assert silence_limit_ns(flight(10), 50) == 150 * MS
    assert silence_limit_ns(flight(200), 50) == 600 * MS
    assert silence_limit_ns(None, 50, last=True) == 1000 * MS
    assert silence_limit_ns(flight(400), 50, last=True) == 1200 * MS
    assert suspicion(None, 0, 149 * MS, 50) == (False, 150 * MS)
    assert suspicion(None, 0, 999 * MS, 50, last=True) == (False, 1000 * MS)
    assert suspicion(None, 0, 150 * MS, 50) == (True, 150 * MS)


def test_tensors_on_their_way_give_a_worker_time_to_take_them() -> None:
    mib = 1 << 20
    assert silence_limit_ns(None, 50, carried_bytes=0) == 150 * MS
    more_ns = 25 * 40 * mib
    assert silence_limit_ns(flight(10), 50, carried_bytes=40 * mib) == 150 * MS + more_ns
    assert suspicion(flight(10), 0, 150 * MS, 50, carried_bytes=40 * mib) == (
        False,
        150 * MS + more_ns,
    )
    assert suspicion(flight(10), 0, 150 * MS + more_ns, 50, carried_bytes=40 * mib)[0]
    tensors = (
        TensorValue("a", "uint8", (3,), b"abc"),
        TensorValue("s", "string", (1,), b"", (b"de",)),
    )
    assert carried_bytes(TensorPayload(tensors)) == 5
    assert carried_bytes(None) == 0


def test_a_run_may_take_long_while_its_worker_reports_but_not_for_ever() -> None:
    assert overdue_limit_ns(flight(10), 50) == 1000 * MS
    assert overdue_limit_ns(flight(300), 50) == 3000 * MS
    assert suspicion(flight(10), 990 * MS, 999 * MS, 50) == (False, 1000 * MS)
    assert suspicion(flight(10), 990 * MS, 1000 * MS, 50)[0]
    later = replace(flight(10), started_ns=500 * MS)
    assert suspicion(later, 990 * MS, 1000 * MS, 50) == (False, 1140 * MS)
