"""Runs are charged to those who were in them, also where nobody got an answer for it."""

from __future__ import annotations

import pytest

from controlplane.deployed import Tally, WorkerLoad
from controlplane.errors import TooLate
from controlplane.measures import NONE
from controlplane.policy.decode import DecodeLoad
from controlplane.policy.records import RequestClass
from tests.unit.controlplane.fake_fleet import MS, House, MemoryWorker, model
from tests.unit.controlplane.virtual_loop import virtual

SHOP, LAB = RequestClass(tenant="shop"), RequestClass(tenant="lab")


def charged(house: House) -> dict[str, int]:
    """CPU time in ns by tenant."""
    return {tenant: ns for (tenant, _), ns in house.dispatcher.measures.callers.cpu_ns.items()}


@virtual
async def test_answers_are_charged_what_they_took() -> None:
    house = House()
    worker = house.join()
    answer = await house.dispatcher.submit(house.ask(klass=SHOP))
    assert charged(house) == {"shop": answer.outcome.charged_cpu_ns} == {"shop": 10 * MS}
    assert worker.session.tally.charged_cpu_ns == 10 * MS
    house.close()


@virtual
async def test_a_run_that_came_too_late_is_charged_too() -> None:
    house = House()

    def slow(worker: MemoryWorker) -> None:
        worker.slowness = 10.0

    worker = house.join(change=slow)
    with pytest.raises(TooLate):
        await house.dispatcher.submit(house.ask(30.0, klass=SHOP))
    assert charged(house) == {}
    await house.pass_ms(200)
    assert charged(house)["shop"] == worker.session.tally.charged_cpu_ns > 30 * MS
    house.close()


@virtual
async def test_who_goes_away_pays_for_what_runs() -> None:
    house = House()
    worker = house.join()
    request = house.ask(klass=LAB)
    future = house.dispatcher.submit(request)
    await house.pass_ms(2)
    house.dispatcher.cancel(request)
    await house.pass_ms(50)
    assert future.done()
    assert charged(house) == {"lab": worker.session.tally.charged_cpu_ns} == {"lab": 10 * MS}
    house.close()


@virtual
async def test_who_shares_a_run_shares_its_time_exactly() -> None:
    house = House(prefetch=0)
    house.join(models=(model(fixed_share=0.5),))
    asked = [house.ask(400.0, klass=klass, tokens=n) for klass, n in ((SHOP, 7), (LAB, 11)) * 4]
    answers = [await future for future in [house.dispatcher.submit(each) for each in asked]]
    assert max(answer.outcome.batch_size for answer in answers) > 1
    told = sum(answer.outcome.charged_cpu_ns for answer in answers)
    assert sum(charged(house).values()) == told
    assert NONE not in charged(house)
    house.close()


def test_a_tally_begins_with_the_first_report() -> None:
    tally = Tally()
    first = WorkerLoad(run_cpu_ns=500, process_cpu_ns=900, decode=(DecodeLoad(live_token_ms=7),))
    later = first._replace(
        run_cpu_ns=800, process_cpu_ns=1300, decode=(DecodeLoad(live_token_ms=17),)
    )
    tally.report(WorkerLoad(), first)
    assert (tally.run_cpu_ns, tally.process_cpu_ns, tally.live_token_ms) == (0, 0, 0)
    tally.report(first, later)
    assert (tally.run_cpu_ns, tally.process_cpu_ns, tally.live_token_ms) == (300, 400, 10)
    # A model is let go, and its total with it.
    gone = later._replace(decode=(DecodeLoad(live_token_ms=1),))
    tally.report(later, gone)
    assert tally.live_token_ms == 10
