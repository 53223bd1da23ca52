"""What the dispatcher measures adds up with what callers saw."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from controlplane.config import ClassConfig, QueueConfig
from controlplane.errors import ControlPlaneError, InvalidRequest, NotFound, Refused, TooLate
from controlplane.histogram import TIMES_NS, Histogram
from controlplane.measures import MOST_TENANTS, NONE, OTHER, QUEUED, RUNNING, Callers, Names
from controlplane.policy.records import RequestClass
from tests.unit.controlplane.fake_fleet import MS, House
from tests.unit.controlplane.virtual_loop import virtual


def accounted(house: House) -> bool:
    """Every request that came has ended, or is pending."""
    measures = house.dispatcher.measures
    pending = house.dispatcher.gauges()["pending"]
    return sum(measures.received.values()) == sum(measures.ended.values()) + pending


def test_a_bound_holds_what_equals_it() -> None:
    histogram = Histogram([10, 20])
    for value in (-5, 10, 11, 20, 21, 1000):
        histogram.observe(value)
    assert (histogram.counts, histogram.sum) == ([2, 2, 2], 1057)


def test_bounds_of_times_go_from_a_millisecond_to_a_minute() -> None:
    assert sorted(set(TIMES_NS)) == TIMES_NS
    assert (TIMES_NS[0], TIMES_NS[-1]) == (MS, 60_000 * MS)


def test_only_so_many_names_are_told_apart() -> None:
    names = Names(2, ["a"])
    told = [names.label(name) for name in ("", "a", "b", "c", "d", "b", "a", "")]
    assert told == [NONE, "a", "b", OTHER, OTHER, "b", "a", NONE]


def test_callers_cannot_make_labels_without_end() -> None:
    callers = Callers(["gold"])
    for number in range(1000):
        callers.charge(RequestClass(tenant=f"t{number}", name=f"c{number}"), 1)
    callers.charge(RequestClass(tenant="t0", name="gold"), 5)
    assert len(callers.cpu_ns) == MOST_TENANTS + 2
    assert callers.cpu_ns[OTHER, OTHER] == 1000 - MOST_TENANTS
    assert callers.cpu_ns["t0", "gold"] == 5
    known = Callers([], ["acme"])
    for number in range(1000):
        known.charge(RequestClass(tenant=f"t{number}"), 1)
    known.charge(RequestClass(tenant="acme"), 7)
    assert known.cpu_ns["acme", NONE] == 7
    assert len(known.cpu_ns) == MOST_TENANTS + 2


@virtual
async def test_an_answer_is_measured_from_queue_to_charge() -> None:
    house = House(classes={"gold": ClassConfig()})
    house.join()
    klass = RequestClass(tenant="acme", name="gold")
    await house.dispatcher.submit(house.ask(100, klass=klass))
    measures = house.dispatcher.measures
    assert measures.received == {("m", "gold"): 1}
    assert measures.ended == {("m", "gold", "answered"): 1}
    assert measures.answers == {("m", "best", "most-accurate-in-reserve"): 1}
    assert measures.tokens == {("m", "best"): 10}
    assert measures.callers.cpu_ns == {("acme", "gold"): 10 * MS}
    assert measures.queue["m", "gold", "best"].sum == 0
    assert measures.slack["m", "best"].sum == 100 * MS
    assert measures.duration["m", "gold"].sum == 10 * MS
    assert measures.batch["m", "best"].counts[0] == 1
    # Exactly as long as was predicted.
    assert measures.service["m", "best"].sum == 1000
    assert not measures.refused and not measures.missed
    house.close()


@virtual
async def test_refusals_have_their_reason_and_misses_their_place() -> None:
    house = House(queue=QueueConfig(max_items=1), prefetch=0)
    house.join(change=lambda worker: setattr(worker, "slowness", 50.0))
    with pytest.raises(TooLate):
        house.submit(0.5)
    running = house.submit(100)
    await house.pass_ms(1)
    queued = house.submit(60)
    with pytest.raises(Refused):
        house.submit(100)
    for future in (running, queued):
        with pytest.raises(TooLate):
            await future
    measures = house.dispatcher.measures
    assert (
        measures.refused
        == {
            ("m", "queue-full"): 1,
            ("m", "deadline-below-service-time"): 1,
        }
        or sum(measures.refused.values()) == 2
    )
    assert measures.missed == {("m", RUNNING): 1, ("m", QUEUED): 1}
    # What was never dispatched is in the queue's times as well: 60 ms of it.
    assert measures.queue["m", NONE, NONE].sum == pytest.approx(60 * MS, abs=2 * MS)
    assert accounted(house)
    house.close()


@virtual
async def test_unknown_models_and_classes_share_a_label() -> None:
    house = House()
    house.join()
    for number in range(3):
        with pytest.raises(NotFound):
            house.dispatcher.submit(house.ask(name=f"x{number}"))
        with pytest.raises(InvalidRequest):
            house.dispatcher.submit(house.ask(klass=RequestClass(name=f"y{number}")))
    measures = house.dispatcher.measures
    assert measures.received == {(NONE, NONE): 3, ("m", OTHER): 3}
    assert measures.ended == {(NONE, NONE, "not-found"): 3, ("m", OTHER, "invalid"): 3}
    house.close()


@virtual
async def test_after_a_storm_of_cancels_and_a_lost_worker_everything_is_accounted_for() -> None:
    house = House()
    workers = [house.join(), house.join()]
    futures = []
    for number in range(200):
        request = house.ask(50 + number)
        with contextlib.suppress(ControlPlaneError):
            futures.append(house.dispatcher.submit(request))
            if number % 3 == 0:
                house.dispatcher.cancel(request)
        if number == 100:
            house.leave(workers[0])
        await house.pass_ms(1)
        assert accounted(house)
    await asyncio.gather(*futures, return_exceptions=True)
    await house.pass_ms(1000)
    assert house.at_rest() and accounted(house)
    ended = house.dispatcher.measures.ended
    assert ended["m", NONE, "cancelled"] > 10 and ended["m", NONE, "answered"] > 10
    assert (house.registry.joined, house.registry.lost, house.registry.drained) == (2, 1, 0)
    house.close()
