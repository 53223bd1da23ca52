"""The dispatcher on virtual time: every request ends once, on time, and nothing is left behind."""

import asyncio
import contextlib

import pytest

from controlplane.config import ClassConfig, QueueConfig
from controlplane.errors import (
    Cancelled,
    InvalidRequest,
    NotFound,
    Refused,
    TooLate,
    Unavailable,
    Unsatisfiable,
)
from controlplane.policy.records import RequestClass
from controlplane.policy.selector import Reason
from controlplane.registry import ModelState
from tests.unit.controlplane.fake_fleet import MS, House, model
from tests.unit.controlplane.virtual_loop import virtual


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
