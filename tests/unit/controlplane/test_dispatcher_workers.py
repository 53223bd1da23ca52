"""Workers that are lost, silent, stuck, draining or refusing, on virtual time."""

import asyncio

import pytest

from controlplane.errors import (
    InvalidRequest,
    TooLate,
    Unavailable,
    WorkerFault,
)
from controlplane.registry import WorkerLoad, WorkerState
from controlplane.work import ItemStatus
from tests.unit.controlplane.fake_fleet import MS, House
from tests.unit.controlplane.virtual_loop import run, virtual


@virtual
async def test_a_lost_worker_s_requests_run_elsewhere() -> None:
    house = House()
    first = house.join()
    future = house.submit(100)
    await house.pass_ms(2)
    second = house.join()
    house.leave(first)
    answer = await future
    assert answer.provenance.worker_id == second.session.identity.id
    assert answer.outcome.dispatches == 2
    assert house.dispatcher.counters.redispatched == 1
    assert house.at_rest()
    house.close()


@virtual
async def test_requests_wait_for_a_replacement_while_their_slack_allows() -> None:
    house = House()
    first = house.join("w1")
    patient, hasty = house.submit(200), house.submit(30)
    await house.pass_ms(1)
    house.leave(first)
    with pytest.raises(Unavailable, match="no live worker"):
        house.submit(100)
    with pytest.raises(TooLate):
        await hasty
    await house.pass_ms(20)
    house.join("w1")
    answer = await patient
    assert answer.provenance.worker_id == "w1"
    assert house.at_rest()
    house.close()


@virtual
async def test_a_worker_that_joins_under_load_is_used_at_once() -> None:
    house = House(prefetch=0)
    house.join()
    futures = [house.submit(1000) for _ in range(4)]
    await house.pass_ms(1)
    second = house.join()
    await house.pass_ms(0.1)
    assert second.received
    await asyncio.gather(*futures)
    house.close()


@virtual
async def test_a_request_that_breaks_every_worker_is_given_up() -> None:
    house = House()
    for _ in range(3):
        house.join()
    future = house.submit(1000)
    for _ in range(3):
        await house.pass_ms(1)
        holder = next(w for w in house.workers if w.received and not w.mute)
        house.leave(holder)
    with pytest.raises(WorkerFault, match="lost while executing"):
        await future
    assert house.at_rest()
    house.close()


@virtual
async def test_a_silent_worker_is_suspected_and_its_work_runs_elsewhere() -> None:
    house = House(prefetch=0)
    silent = house.join("silent", change=lambda worker: setattr(worker, "mute", True))
    future = house.submit(1000)
    await house.pass_ms(1)
    house.join("other")
    house.silence(silent)
    answer = await future
    assert answer.provenance.worker_id == "other"
    assert silent.session.state is WorkerState.SUSPECT
    # Three report intervals of silence, then one run.
    assert house.loop.now_ns() == pytest.approx(160 * MS, abs=12 * MS)
    assert silent.cancelled == [silent.received[0].item_ids[0]]
    again = await house.submit()
    assert again.provenance.worker_id == "other"
    silent.speak()
    assert silent.session.state.value == "ready"
    assert house.dispatcher.counters.late_results == 1
    assert house.at_rest()
    house.close()


@virtual
async def test_a_loop_that_was_held_up_suspects_nobody_for_it() -> None:
    house = House(prefetch=0)
    worker = house.join()
    await house.pass_ms(10)
    # Virtual time jumps as if the process had been stopped; the reports come right after.
    house.loop.jump(0.5)
    await house.pass_ms(1)
    assert worker.session.state.value == "ready"
    await house.pass_ms(200)
    assert worker.session.state.value == "ready"
    house.close()


@virtual
async def test_the_last_worker_loses_its_privilege_when_another_joins() -> None:
    house = House(prefetch=0)
    silent = house.join("silent")
    house.silence(silent)
    await house.pass_ms(500)
    assert silent.session.state.value == "ready"
    house.join("other")
    await house.pass_ms(60)
    assert silent.session.state is WorkerState.SUSPECT
    assert (await house.submit()).provenance.worker_id == "other"
    house.close()


@virtual
async def test_a_suspect_is_given_more_time_when_all_others_are_lost() -> None:
    house = House(prefetch=0)
    held_up, trusted = house.join("held-up"), house.join("trusted")
    house.silence(held_up)
    await house.pass_ms(200)
    assert held_up.session.state is WorkerState.SUSPECT
    house.leave(trusted)
    assert held_up.session.state.value == "ready"
    assert (await house.submit()).provenance.worker_id == "held-up"
    await house.pass_ms(1100)
    assert held_up.session.state is WorkerState.SUSPECT
    house.close()


@virtual
async def test_a_suspect_is_given_more_time_when_all_others_drain() -> None:
    house = House(prefetch=0)
    held_up, trusted = house.join("held-up"), house.join("trusted")
    house.silence(held_up)
    await house.pass_ms(200)
    assert held_up.session.state is WorkerState.SUSPECT
    house.silence(trusted)
    house.report(trusted, WorkerLoad(draining=True))
    assert (await house.submit()).provenance.worker_id == "held-up"
    house.close()


@virtual
async def test_the_first_answer_wins_when_a_suspect_comes_back() -> None:
    house = House(prefetch=0)
    slow = house.join("slow", change=lambda worker: setattr(worker, "mute", True))
    future = house.submit(1000)
    await house.pass_ms(1)
    house.join("other", change=lambda worker: setattr(worker, "mute", True))
    house.silence(slow)
    await house.pass_ms(200)
    assert slow.session.state is WorkerState.SUSPECT
    slow.speak()
    answer = await future
    assert answer.provenance.worker_id == "slow"
    assert answer.outcome.dispatches == 2
    house.workers[1].speak()
    assert house.dispatcher.counters.late_results == 1
    assert house.at_rest()
    house.close()


@virtual
async def test_the_only_worker_keeps_its_work_while_it_is_suspect() -> None:
    house = House(prefetch=0)
    only = house.join("only", change=lambda worker: setattr(worker, "mute", True))
    first, second = house.submit(2000), house.submit(2000)
    await house.pass_ms(1)
    house.silence(only)
    # The last worker of a pool is given twenty intervals; nothing could run elsewhere.
    await house.pass_ms(900)
    assert only.session.state.value == "ready"
    await house.pass_ms(200)
    assert only.session.state.value == "suspect"
    assert house.dispatcher.gauges()["queued"] == 1
    only.speak()
    assert (await first).outcome.dispatches == 1
    assert (await second).outcome.dispatches == 1
    assert house.at_rest()
    house.close()


@virtual
async def test_a_newcomer_takes_over_what_a_suspect_holds() -> None:
    house = House(prefetch=0)
    only = house.join("only", change=lambda worker: setattr(worker, "mute", True))
    future = house.submit(2000)
    await house.pass_ms(1)
    house.silence(only)
    await house.pass_ms(1100)
    assert only.session.state is WorkerState.SUSPECT
    house.join("new")
    assert (await future).provenance.worker_id == "new"
    house.close()


@virtual
async def test_a_worker_that_sits_on_a_run_gets_no_more_though_it_reports() -> None:
    house = House(prefetch=0)
    stuck = house.join("stuck", change=lambda worker: setattr(worker, "mute", True))
    future = house.submit(5000)
    await house.pass_ms(1)
    house.join("other")
    answer = await future
    assert answer.provenance.worker_id == "other"
    assert stuck.session.state is WorkerState.SUSPECT
    house.close()


@virtual
async def test_a_draining_worker_gets_no_new_work_and_finishes_the_old() -> None:
    house = House(prefetch=0)
    draining = house.join("draining")
    first = house.submit()
    await house.pass_ms(1)
    house.report(draining, WorkerLoad(draining=True))
    house.join("other")
    second = house.submit()
    assert (await first).provenance.worker_id == "draining"
    assert (await second).provenance.worker_id == "other"
    assert draining.session.state is WorkerState.DRAINING
    house.report(draining, WorkerLoad())
    assert draining.session.state.value == "ready"
    house.close()


@virtual
async def test_a_worker_s_refusal_is_tried_again_and_then_answered() -> None:
    house = House()
    house.join(change=lambda worker: setattr(worker, "status", ItemStatus.UNAVAILABLE))
    with pytest.raises(Unavailable, match="did not execute"):
        await house.submit(1000)
    assert len(house.workers[0].received) == 3
    assert house.at_rest()
    house.close()


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (ItemStatus.INVALID_ARGUMENT, InvalidRequest),
        (ItemStatus.EXPIRED, TooLate),
        (ItemStatus.INTERNAL, WorkerFault),
    ],
)
def test_how_an_item_ends_is_how_its_request_ends(
    status: ItemStatus, error: type[Exception]
) -> None:
    async def ends() -> None:
        house = House()
        house.join(change=lambda worker: setattr(worker, "status", status))
        with pytest.raises(error):
            await house.submit(1000)
        assert house.at_rest()
        house.close()

    run(ends())
