"""Records of requests: estimated before, corrected after, and every CPU-ms in one of them."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from controlplane.errors import ControlPlaneError, NotFound, TooLate
from controlplane.policy.records import RequestClass
from controlplane.records.demand import AFTERWARDS, COLUMNS, DemandRecord, Use, row_of
from controlplane.records.estimates import FadingMeans
from controlplane.records.recorder import RequestRecorder, Sampling
from tests.unit.controlplane.fake_fleet import MS, House, MemoryWorker, model
from tests.unit.controlplane.virtual_loop import virtual

SHOP = RequestClass(tenant="shop", privacy_class="sealed")
WALL_NS = 5 * 10**17


class Kept:
    """A sink that keeps all."""

    def __init__(self) -> None:
        self.records: list[DemandRecord] = []

    def put(self, record: DemandRecord) -> None:
        self.records.append(record)


def recording(share: float = 1.0) -> tuple[House, Kept, RequestRecorder]:
    kept = Kept()
    recorder = RequestRecorder(kept, Sampling(share), WALL_NS)
    return House(records=recorder), kept, recorder


def slow(worker: MemoryWorker) -> None:
    worker.slowness = 4.0


@virtual
async def test_an_answer_leaves_its_record() -> None:
    house, kept, recorder = recording()
    house.join()
    request = house.ask(200.0, tokens=20, klass=SHOP)
    request.preprocess_ns = 300_000
    answer = await house.dispatcher.submit(request)
    (record,) = kept.records
    assert record.outcome == "answered" and record.on_time == record.asked == 1
    assert (record.model, record.tenant, record.privacy_class) == ("m", "shop", "sealed")
    assert record.variant == answer.provenance.variant == "best"
    assert record.reason == answer.provenance.reason
    assert record.worker == "w1"
    assert (record.items, record.tokens, record.longest, record.batch) == (1, 20, 20, 1)
    assert record.at_us == (request.arrived_ns + WALL_NS) // 1000
    assert record.deadline_us == 200_000
    assert record.estimated.compute_us == record.measured.compute_us == 20_000
    assert record.measured.preprocess_us == 300
    # Twenty ids of four bytes there, one int64 back.
    assert record.measured.transfer_bytes == record.measured.peak_bytes == 88
    assert len(row_of(record)) == len(COLUMNS)
    assert len(recorder) == 0
    house.close()


@virtual
async def test_estimates_follow_what_was_seen() -> None:
    house, kept, _ = recording()
    house.join(change=slow)
    for _ in range(30):
        request = house.ask(1000.0)
        request.preprocess_ns = 1 * MS
        await house.dispatcher.submit(request)
    first, last = kept.records[0], kept.records[-1]
    bare = Use(compute_us=10_000, transfer_bytes=40, peak_bytes=40, live_bytes=40)
    assert first.estimated == bare
    assert last.estimated.preprocess_us == last.measured.preprocess_us == 1000
    assert last.estimated.transfer_bytes == last.measured.transfer_bytes == 48
    assert last.estimated.compute_us == pytest.approx(last.measured.compute_us, rel=0.05)
    house.close()


def roomy(worker: MemoryWorker) -> None:
    worker.run_bytes, worker.token_bytes = 60_000, 2000


@virtual
async def test_the_peak_is_what_the_run_took_beside_the_payload() -> None:
    house, kept, _ = recording()
    house.join(change=roomy)
    for _ in range(2):
        await house.dispatcher.submit(house.ask(tokens=10))
    first, second = kept.records
    assert first.estimated.peak_bytes == 40
    assert first.measured.peak_bytes == 48 + 80_000
    assert second.estimated.peak_bytes == second.measured.peak_bytes == 48 + 80_000
    assert second.measured.live_bytes == second.measured.transfer_bytes == 48
    # Nobody has run so many tokens yet: as much for each as in the runs that there were.
    await house.dispatcher.submit(house.ask(1000.0, tokens=40))
    assert kept.records[-1].estimated.peak_bytes == 160 + 8 + 40 * 8000
    assert kept.records[-1].measured.peak_bytes == 160 + 8 + 60_000 + 40 * 2000
    # One that is never sent is taken for a usual one of its model.
    with pytest.raises(ControlPlaneError):
        house.dispatcher.submit(house.ask(1.0))
    assert kept.records[-1].estimated.peak_bytes == 48 + 10 * int(8000 - 0.1 * (8000 - 3500))
    assert kept.records[-1].measured.peak_bytes == 40
    house.close()


@virtual
async def test_requests_of_one_run_share_its_memory_by_tokens() -> None:
    house, kept, _ = recording()
    house.join(models=(model(fixed_share=0.9),), change=roomy)
    asks = [house.ask(1000.0, tokens=count) for count in (10, 30)]
    await asyncio.gather(*[house.dispatcher.submit(request) for request in asks])
    one, other = sorted(kept.records, key=lambda record: record.tokens)
    assert one.batch == other.batch == 2
    run = 60_000 + 40 * 2000
    took = [each.measured.peak_bytes - each.measured.live_bytes for each in (one, other)]
    assert took == [run // 4, run - run // 4]
    house.close()


@virtual
async def test_who_is_refused_leaves_what_he_was_estimated_to_need() -> None:
    house, kept, _ = recording()
    house.join()
    with pytest.raises(ControlPlaneError):
        house.dispatcher.submit(house.ask(1.0))
    (record,) = kept.records
    assert (record.outcome, record.reason) == ("too-late", "deadline-below-service-time")
    assert (record.variant, record.dispatches, record.on_time) == ("", 0, 0)
    assert record.estimated.compute_us == 4000
    assert record.measured.compute_us == record.measured.transfer_bytes == 0
    house.close()


@virtual
async def test_a_model_that_nobody_has_is_not_named() -> None:
    house, kept, _ = recording()
    house.join()
    with pytest.raises(NotFound):
        house.dispatcher.submit(house.ask(name="whatever a caller writes here"))
    (record,) = kept.records
    assert (record.outcome, record.model) == ("not-found", "")
    house.close()


@virtual
async def test_cpu_time_after_the_end_is_a_record_of_its_own() -> None:
    house, kept, recorder = recording()
    worker = house.join(change=slow)
    with pytest.raises(TooLate):
        await house.dispatcher.submit(house.ask(15.0, klass=SHOP))
    late = kept.records[-1]
    assert (late.outcome, late.on_time, late.measured.compute_us) == ("too-late", 0, 0)
    assert late.variant and late.dispatches == 1
    await house.pass_ms(100)
    after = kept.records[-1]
    assert (after.outcome, after.asked, after.tenant) == (AFTERWARDS, 0, "shop")
    spent = worker.session.tally.charged_cpu_ns
    assert sum(record.measured.compute_us for record in kept.records) * 1000 == spent > 0
    assert len(recorder) == 0
    house.close()


@virtual
async def test_every_run_is_in_some_record() -> None:
    house, kept, recorder = recording()
    workers = [house.join(), house.join(change=slow)]
    for number in range(60):
        request = house.ask(60.0 if number % 3 else 25.0, tokens=5 + number % 20)
        with contextlib.suppress(ControlPlaneError):
            house.dispatcher.submit(request)
        if number % 7 == 0:
            house.dispatcher.cancel(request)
        await house.pass_ms(3)
    await house.pass_ms(500)
    spent = sum(worker.session.tally.charged_cpu_ns for worker in workers)
    recorded = sum(record.measured.compute_us for record in kept.records) * 1000
    # Each row is cut to whole us.
    assert 0 <= spent - recorded <= 1000 * len(kept.records)
    assert sum(record.asked for record in kept.records) == 60
    assert len(recorder) == 0 and house.at_rest()
    house.close()


@virtual
async def test_a_lost_worker_leaves_one_record_a_request() -> None:
    house, kept, recorder = recording()
    worker = house.join()
    future = house.dispatcher.submit(house.ask(500.0))
    await house.pass_ms(1)
    house.join("other")
    house.leave(worker)
    await future
    (record,) = kept.records
    assert (record.dispatches, record.worker, record.outcome) == (2, "other", "answered")
    assert len(recorder) == 0
    house.close()


@virtual
async def test_a_share_stands_for_all() -> None:
    house, kept, _ = recording(share=0.25)
    house.join()
    for _ in range(40):
        await house.dispatcher.submit(house.ask())
    assert len(kept.records) == 10
    assert sum(record.weight for record in kept.records) == 40
    house.close()


def test_means_fade_and_are_bounded() -> None:
    means = FadingMeans(most=2)
    assert means.mean(("a",), 7.0) == 7.0
    means.observe(("a",), 10.0)
    assert means.mean(("a",), 0.0) == 10.0
    means.observe(("a",), 20.0)
    assert means.mean(("a",), 0.0) == 11.0
    means.observe(("b",), 1.0)
    means.observe(("c",), 2.0)
    assert len(means) == 2
    assert means.mean(("a",), -1.0) == -1.0
    assert means.mean(("b",), -1.0) == 1.0 and means.mean(("c",), -1.0) == 2.0


@virtual
async def test_estimates_are_of_cpu_time() -> None:
    house, kept, _ = recording()
    worker = house.join()
    give = house.dispatcher.completed

    async def ask() -> DemandRecord:
        """One request whose run is on a CPU for half of its time."""
        worker.mute = True
        future = house.dispatcher.submit(house.ask())
        await house.pass_ms(20)
        (done,) = worker._held_back
        worker._held_back.clear()
        give(worker.session, done._replace(cpu_ns=done.run_ns // 2))
        await future
        return kept.records[-1]

    first, second = await ask(), await ask()
    assert (first.estimated.compute_us, first.measured.compute_us) == (10_000, 5000)
    assert (second.estimated.compute_us, second.measured.compute_us) == (5000, 5000)
    house.close()
