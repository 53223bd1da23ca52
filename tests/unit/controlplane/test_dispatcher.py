"""The dispatcher on virtual time: every request ends once, on time, and nothing is left behind."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from functools import wraps

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.config import ClassConfig, QueueConfig
from controlplane.errors import (
    Cancelled,
    InvalidRequest,
    NotFound,
    Refused,
    TooLate,
    Unavailable,
    Unsatisfiable,
    WorkerFault,
)
from controlplane.policy.records import RequestClass
from controlplane.policy.selector import Reason
from controlplane.registry import ModelState, WorkerLoad, WorkerState
from controlplane.work import ItemStatus
from tests.unit.controlplane.fake_fleet import MS, House, model
from tests.unit.controlplane.virtual_loop import run


def virtual(test: Callable[[], Coroutine[object, object, None]]) -> Callable[[], None]:
    @wraps(test)
    def on_a_loop_of_its_own() -> None:
        run(test())

    del on_a_loop_of_its_own.__wrapped__
    return on_a_loop_of_its_own


@virtual
async def test_an_answer_says_where_it_came_from_and_what_it_cost() -> None:
    house = House()
    house.join("w1")
    request = house.ask(100)
    request.preprocess_ns = 0
    answer = await house.dispatcher.submit(request)
    assert answer.outputs[0].data == request.id.to_bytes(8, "little")
    assert answer.labels == ("no", "yes")
    source = answer.provenance
    assert (source.model, source.model_version, source.variant) == ("m", "1", "best")
    assert (source.manifest_digest, source.worker_id) == ("sha256:a", "w1")
    assert (source.reason, source.approximation) == (Reason.MOST_ACCURATE, False)
    outcome = answer.outcome
    assert (outcome.items, outcome.input_tokens, outcome.dispatches) == (1, 10, 1)
    assert outcome.execute_ns == outcome.charged_cpu_ns == outcome.predicted_cpu_ns == 10 * MS
    assert outcome.total_ns == 10 * MS
    assert outcome.slack_at_dispatch_ns == 100 * MS
    assert outcome.slack_at_answer_ns == 90 * MS
    assert house.at_rest()
    house.close()


@virtual
async def test_expiry_answers_at_expiry_not_when_the_run_ends() -> None:
    """Case 1."""
    house = House(prefetch=0)
    house.join(change=lambda worker: setattr(worker, "slowness", 50.0))
    running, queued = house.submit(100), house.submit(60)
    with pytest.raises(TooLate, match=r"60\.0 ms passed while it was"):
        await queued
    assert house.loop.now_ns() == pytest.approx(60 * MS, abs=2 * MS)
    with pytest.raises(TooLate, match=r"100\.0 ms passed while it was"):
        await running
    assert house.loop.now_ns() == pytest.approx(100 * MS, abs=2 * MS)
    assert house.workers[0].cancelled
    await house.pass_ms(1000)
    assert house.at_rest()
    house.close()


@virtual
async def test_the_queue_bound_is_exact_and_the_refusal_says_when_to_come_back() -> None:
    """Cases 2, 5 and 6."""
    house = House(queue=QueueConfig(max_items=3), prefetch=0)
    house.join()
    kept = [house.submit(10_000)]
    await house.pass_ms(1)
    kept += [house.submit(10_000) for _ in range(3)]
    with pytest.raises(Refused, match="queue is full") as refused:
        house.submit(10_000)
    assert refused.value.retry_after_ms > 0
    house.dispatcher.cancel(house.ask())
    assert len(await asyncio.gather(*kept)) == 4
    assert house.at_rest()
    house.close()


@virtual
async def test_predicted_work_is_bounded() -> None:
    """Case 5."""
    house = House(queue=QueueConfig(max_predicted_work_ms=20), prefetch=0)
    house.join()
    kept = [house.submit(10_000)]
    await house.pass_ms(1)
    kept += [house.submit(10_000) for _ in range(5)]
    with pytest.raises(Refused, match="predicted work") as refused:
        house.submit(10_000)
    assert refused.value.retry_after_ms >= 1
    await asyncio.gather(*kept)
    house.close()


@virtual
async def test_a_flood_is_refused_early_and_what_is_admitted_is_on_time() -> None:
    """Cases 5 and 6 at ten times the capacity of the fastest variant."""
    house = House()
    house.join()
    house.join()
    admitted = []
    refused = []
    for _ in range(2000):
        try:
            admitted.append(house.submit(40))
        except Refused as error:
            refused.append(error.retry_after_ms)
        await house.pass_ms(0.2)
    ends = await asyncio.gather(*admitted, return_exceptions=True)
    answered = sum(not isinstance(end, BaseException) for end in ends)
    assert len(refused) > 1500
    assert min(refused) >= 1
    assert answered >= 0.98 * len(admitted)
    assert answered >= 0.95 * 2000 * 0.2 / 4 * 2
    assert house.at_rest()
    assert house.dispatcher.counters.expired_work_executed == 0
    house.close()


@virtual
async def test_a_deadline_is_checked_again_at_dispatch() -> None:
    """Cases 3 and 4: expired work is answered and never executed."""
    house = House(prefetch=0)
    worker = house.join(change=lambda worker: setattr(worker, "slowness", 3.0))
    first = house.submit(100)
    await house.pass_ms(1)
    tight = house.ask(25)
    doomed = house.dispatcher.submit(tight)
    await first
    with pytest.raises((TooLate, Refused)):
        await doomed
    assert tight.id not in worker.executed
    assert house.dispatcher.counters.expired_work_executed == 0
    house.close()


@virtual
async def test_an_expired_deadline_is_refused_at_the_door() -> None:
    """Case 4."""
    house = House()
    house.join()
    late = house.ask(10)
    await house.pass_ms(20)
    with pytest.raises(TooLate):
        house.dispatcher.submit(late)
    assert house.at_rest()
    house.close()


@virtual
async def test_a_deadline_below_any_service_is_too_late_not_overload() -> None:
    house = House()
    house.join()
    with pytest.raises(TooLate, match=r"2\.0 ms is shorter"):
        house.submit(2)
    house.close()


@virtual
async def test_patient_requests_do_not_starve_under_newcomers() -> None:
    """Case 7: with newcomers all the time, a patient request is answered before its deadline."""
    house = House()
    house.join()
    patient = house.submit(500)
    others = []
    for _ in range(300):
        with contextlib.suppress(Refused):
            others.append(house.submit(30))
        await house.pass_ms(3)
        if patient.done():
            break
    answer = await patient
    assert answer.outcome.slack_at_answer_ns >= 0
    await asyncio.gather(*others, return_exceptions=True)
    assert house.at_rest()
    house.close()


@virtual
async def test_a_cancelled_request_leaves_the_queue_and_its_worker_hears_of_a_running_one() -> None:
    """Case 8."""
    house = House(prefetch=0)
    worker = house.join()
    running, queued = house.ask(), house.ask()
    futures = [house.dispatcher.submit(running), house.dispatcher.submit(queued)]
    await house.pass_ms(1)
    house.dispatcher.cancel(running)
    house.dispatcher.cancel(queued)
    house.dispatcher.cancel(queued)
    for future in futures:
        with pytest.raises(Cancelled):
            await future
    assert worker.cancelled == [worker.received[0].item_ids[0]]
    assert house.dispatcher.gauges()["queued"] == 0
    await house.pass_ms(20)
    assert queued.id not in worker.executed
    assert house.dispatcher.counters.late_results == 1
    assert house.at_rest()
    house.close()


@virtual
async def test_after_a_storm_of_ten_thousand_cancels_every_gauge_is_zero() -> None:
    """Case 11."""
    house = House(prefetch=2)
    house.join()
    house.join()
    ended = []
    for burst in range(100):
        requests = [house.ask(5_000) for _ in range(100)]
        futures = [house.dispatcher.submit(request) for request in requests]
        if burst % 3 == 0:
            await house.pass_ms(burst % 7)
        for place, request in enumerate(requests):
            if place % 10:
                house.dispatcher.cancel(request)
            else:
                futures[place].cancel()
                house.dispatcher.cancel(request)
        ended += futures
    await asyncio.gather(*ended, return_exceptions=True)
    await house.pass_ms(1000)
    assert house.at_rest()
    answer = await house.submit()
    assert answer.provenance.variant == "best"
    assert house.at_rest()
    house.close()


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
async def test_the_first_answer_wins_when_a_suspect_comes_back() -> None:
    house = House(prefetch=0)
    slow = house.join("slow", change=lambda worker: setattr(worker, "mute", True))
    future = house.submit(1000)
    await house.pass_ms(1)
    house.silence(slow)
    await house.pass_ms(200)
    assert slow.session.state is WorkerState.SUSPECT
    assert house.dispatcher.gauges()["queued"] == 1
    slow.speak()
    answer = await future
    assert answer.provenance.worker_id == "slow"
    assert house.at_rest()
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


@virtual
async def test_unknown_models_classes_and_pins_are_named() -> None:
    house = House(classes={"gold": ClassConfig(minimum_quality=0.85)})
    house.join()
    with pytest.raises(NotFound, match=r"'other'.*models: m"):
        house.dispatcher.submit(house.ask(name="other"))
    with pytest.raises(InvalidRequest, match="'silver'; configured: gold"):
        house.dispatcher.submit(house.ask(klass=RequestClass(name="silver")))
    with pytest.raises(NotFound, match="'huge'"):
        house.dispatcher.submit(house.ask(klass=RequestClass(variant="huge")))
    with pytest.raises(Unsatisfiable, match="floor"):
        house.dispatcher.submit(house.ask(klass=RequestClass(minimum_quality=0.99)))
    assert house.dispatcher.counters.outcomes[""] == {"not-found": 1}
    assert house.at_rest()
    house.close()


@virtual
async def test_a_class_s_floor_holds_under_every_load() -> None:
    house = House(classes={"gold": ClassConfig(minimum_quality=0.85)})
    house.join()
    futures = []
    for _ in range(60):
        for klass in (RequestClass(), RequestClass(name="gold")):
            try:
                futures.append(house.dispatcher.submit(house.ask(40, klass=klass)))
            except Refused:
                continue
        await house.pass_ms(3)
    ends = await asyncio.gather(*futures, return_exceptions=True)
    answers = [end for end in ends if not isinstance(end, BaseException)]
    assert {answer.provenance.variant for answer in answers} == {"best", "fast"}
    assert all(
        answer.provenance.approximation == (answer.provenance.variant == "fast")
        for answer in answers
    )
    assert any(answer.provenance.reason == Reason.ONLY_ELIGIBLE for answer in answers)
    house.close()


@virtual
async def test_a_model_that_is_loading_says_how_far_it_is() -> None:
    house = House()
    house.join(models=(model(state=ModelState.WARMING),))
    with pytest.raises(Unavailable, match=r"'m' is warming \(100%\)"):
        house.submit()
    house.close()


@virtual
async def test_closing_ends_what_is_left() -> None:
    house = House(prefetch=0)
    house.join()
    futures = [house.submit(1000) for _ in range(3)]
    await house.pass_ms(1)
    house.close()
    for future in futures:
        with pytest.raises(Unavailable, match="shutting down"):
            await future
    assert house.at_rest()


@pytest.mark.parametrize("policy", ["accurate", "cheap"])
def test_comparison_policies_run_on_the_same_dispatcher(policy: str) -> None:
    async def compare() -> None:
        house = House(policy=policy)
        house.join()
        futures = [house.submit(1000) for _ in range(5)]
        answers = await asyncio.gather(*futures)
        expected = "best" if policy == "accurate" else "fast"
        assert {answer.provenance.variant for answer in answers} == {expected}
        assert house.at_rest()
        house.close()

    run(compare())


@settings(max_examples=40, deadline=None)
@given(
    bursts=st.lists(
        st.lists(st.tuples(st.integers(1, 30), st.integers(20, 400)), min_size=1, max_size=12),
        min_size=1,
        max_size=8,
    ),
    cancelled=st.sets(st.integers(0, 95)),
    lost_after=st.integers(0, 12),
)
def test_everybody_gets_his_own_answer_or_an_error(
    bursts: list[list[tuple[int, int]]], cancelled: set[int], lost_after: int
) -> None:
    """Case 14: shared runs, results in any order, cancels and a lost worker in between."""

    async def storm() -> None:
        house = House(max_batch=8, prefetch=2)
        shared = model(fixed_share=0.7)
        for _ in range(2):
            house.join(models=(shared,), change=lambda worker: setattr(worker, "mixed", True))
        futures = {}
        requests = []
        for turn, burst in enumerate(bursts):
            for tokens, deadline_ms in burst:
                request = house.ask(deadline_ms, tokens=tokens)
                requests.append(request)
                with contextlib.suppress(Refused, TooLate):
                    futures[request.id] = house.dispatcher.submit(request)
            if turn == lost_after:
                house.leave(house.workers[0])
            await house.pass_ms(4)
            for place in cancelled:
                if place < len(requests):
                    house.dispatcher.cancel(requests[place])
        for request_id, future in futures.items():
            try:
                answer = await future
            except (Refused, TooLate, Cancelled):
                continue
            assert answer.outputs[0].data == request_id.to_bytes(8, "little")
        await house.pass_ms(500)
        assert house.at_rest()
        executed = [request for worker in house.workers for request in worker.executed]
        assert len(executed) <= sum(r.dispatches for r in requests)
        assert house.dispatcher.counters.expired_work_executed == 0
        house.close()

    run(storm())


@virtual
async def test_a_burst_shares_runs_where_that_pays() -> None:
    """Cases 12 and 13: lengths differ, the runs are shared, and all together are faster."""
    house = House(max_batch=8)
    house.join(models=(model(fixed_share=0.8),))
    lengths = [2, 9, 30, 5, 14, 7, 3, 22]
    futures = [house.dispatcher.submit(house.ask(400, tokens=n)) for n in lengths]
    answers = await asyncio.gather(*futures)
    assert max(answer.outcome.batch_size for answer in answers) > 1
    alone = 8 * 8 * MS + 92 * MS // 5
    assert sum(answer.outcome.charged_cpu_ns for answer in answers) < 0.6 * alone
    assert house.loop.now_ns() < 0.6 * alone
    house.close()
