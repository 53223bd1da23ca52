"""The Fleet service against a real worker server in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from controlplane.errors import NotFound, TooLate, Unsatisfiable, WorkerFault
from controlplane.rpc.repository import FleetRepository
from protos.orchid.v1 import common_pb2, fleet_pb2, worker_pb2
from tests.contract.controlplane.fake_worker import (
    FakeWorker,
    Membership,
    model,
    serving,
    until,
)
from tests.contract.controlplane.plane import Plane, running


@pytest.fixture
async def plane() -> AsyncIterator[Plane]:
    async with running() as made:
        yield made


async def test_a_registered_worker_is_dialled_back_and_answers(plane: Plane) -> None:
    worker = FakeWorker()
    async with plane.member(worker):
        answer = await plane.ask("good film plot")
        assert answer.outputs[0].data == (5).to_bytes(8, "little")
        assert answer.provenance.worker_id == "w1"
        assert answer.provenance.variant == "tiny-a"
        assert answer.provenance.manifest_digest == "sha256:1"
        assert answer.outcome.input_tokens == 5
        assert not any(plane.dispatcher.gauges().values())
    item = worker.messages[0].batches[0].items[0]
    assert 0 < item.budget_us <= 5_000_000
    assert worker.streams == 1


async def test_requests_that_leave_together_share_a_message(plane: Plane) -> None:
    worker = FakeWorker()
    async with plane.member(worker):
        answers = await asyncio.gather(*(plane.ask("good " * n) for n in range(1, 40)))
        assert [int.from_bytes(a.outputs[0].data, "little") for a in answers] == [
            n + 2 for n in range(1, 40)
        ]
        items = sum(len(b.items) for m in worker.messages for b in m.batches)
        assert items == 39
        assert len(worker.messages) < items


async def test_an_expired_request_is_cancelled_on_its_worker(plane: Plane) -> None:
    worker = FakeWorker(answering=False)
    async with plane.member(worker) as membership:
        asked = asyncio.create_task(plane.ask(deadline_ms=80))
        await until(lambda: bool(worker.messages), "the request reached the worker")
        await membership.report()
        with pytest.raises(TooLate):
            await asked
        sent = worker.messages[0].batches[0].items[0].item_id
        await until(
            lambda: any(sent in m.cancel_item_ids for m in worker.messages), "the cancel arrived"
        )


async def test_a_broken_stream_is_a_lost_worker_at_once(plane: Plane) -> None:
    broken, other = FakeWorker("broken", answering=False), FakeWorker("other")
    async with plane.member(broken) as membership:
        asked = asyncio.create_task(plane.ask(deadline_ms=5000))
        await until(lambda: bool(broken.messages), "the request reached the worker")
        async with plane.member(other):
            broken.break_stream.set()
            answer = await asked
            assert answer.provenance.worker_id == "other"
            assert answer.outcome.dispatches == 2
            assert await membership.call.read() is grpc.aio.EOF


async def test_a_message_that_cannot_be_made_ends_the_membership(
    plane: Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its worker would be sent nothing any more while it still reports."""

    def fail(*_: object) -> None:
        raise ValueError

    async with plane.member(FakeWorker()):
        monkeypatch.setattr(worker_pb2, "ExecuteRequest", fail)
        asking = asyncio.create_task(plane.ask(deadline_ms=500))
        await until(lambda: not plane.registry.workers(), "the worker left")
        with pytest.raises((TooLate, WorkerFault)):
            await asking


async def test_a_worker_that_comes_back_gets_a_new_session(plane: Plane) -> None:
    worker = FakeWorker()
    async with serving(worker) as address:
        first = Membership(worker, address, plane.channel)
        await first.hello()
        await until(lambda: worker.streams == 1, "the first stream is open")
        number = plane.registry.workers()[0].number
        second = Membership(worker, address, plane.channel)
        assert (await second.hello()).HasField("welcome")
        assert await first.call.read() is grpc.aio.EOF
        await until(lambda: worker.streams == 2, "the second stream is open")
        assert [s.number for s in plane.registry.workers()] == [number + 1]
        second.call.cancel()
        await until(lambda: not plane.registry.workers(), "the worker left")


async def test_a_second_worker_of_the_same_id_is_refused_while_the_first_lives(
    plane: Plane,
) -> None:
    first, second = FakeWorker(), FakeWorker()
    async with serving(first) as address, serving(second) as other:
        member = Membership(first, address, plane.channel)
        await member.hello()
        await until(lambda: first.streams == 1, "the first worker is attached")
        rival = Membership(second, other, plane.channel)
        reason = (await rival.hello()).reject.reason
        assert first.name in reason and address in reason and other in reason
        assert await rival.call.read() is grpc.aio.EOF
        assert [s.identity.address for s in plane.registry.workers()] == [address]

        # Silent for long, the first is given up: its machine may be gone.
        plane.registry.workers()[0].heard_ns -= 10**12
        heir = Membership(second, other, plane.channel)
        assert (await heir.hello()).HasField("welcome")
        assert await member.call.read() is grpc.aio.EOF
        assert [s.identity.address for s in plane.registry.workers()] == [other]
        heir.call.cancel()
        await until(lambda: not plane.registry.workers(), "the worker left")


async def test_no_answer_without_any_worker_left(plane: Plane) -> None:
    worker = FakeWorker(answering=False)
    async with plane.member(worker):
        asked = asyncio.create_task(plane.ask(deadline_ms=300))
        await until(lambda: bool(worker.messages), "the request reached the worker")
        worker.break_stream.set()
        with pytest.raises((TooLate, WorkerFault)):
            await asked
    with pytest.raises(NotFound):
        plane.registry.model("tiny")
    assert not any(plane.dispatcher.gauges().values())


async def test_models_that_change_state_are_followed(plane: Plane) -> None:
    worker = FakeWorker()
    async with plane.member(worker) as membership:
        await membership.models(model(state=common_pb2.READINESS_STATE_WARMING))
        await until(lambda: not plane.registry.model("tiny").ready, "the model is not ready")
        await membership.models(model())
        await until(lambda: plane.registry.model("tiny").ready, "the model is ready again")
        assert (await plane.ask()).provenance.variant == "tiny-a"
        assert worker.descriptions == 1


async def test_a_new_tokenizer_is_asked_for(plane: Plane) -> None:
    worker = FakeWorker()
    async with plane.member(worker) as membership:
        changed = model(digest="sha256:2")
        changed.tokenizers[0].sha256 = "cd" * 32
        worker.models = [changed]
        await membership.models(changed)
        await until(lambda: plane.registry.tokenizer("cd" * 32) is not None, "the document arrived")
        assert (await plane.ask()).provenance.manifest_digest == "sha256:2"


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (FakeWorker("odd", [model(digest="sha256:2")]), "manifest sha256:2 differs"),
        (FakeWorker("odd", cpu_model="another"), "machine class another/avx2/1 differs"),
    ],
)
async def test_unlike_deployments_are_kept_apart_with_a_reason(
    plane: Plane, other: FakeWorker, why: str
) -> None:
    async with plane.member(FakeWorker()), plane.member(other):
        for _ in range(6):
            assert (await plane.ask()).provenance.worker_id == "w1"
        status = await plane.status()
        assert status.pools[0].workers == 1
        assert "odd kept apart" in status.pools[0].state
        assert why in status.pools[0].state
        assert not other.messages


async def test_what_was_kept_apart_takes_over_when_the_pool_is_empty(plane: Plane) -> None:
    old, new = FakeWorker("old"), FakeWorker("new", [model(digest="sha256:2")])
    async with plane.member(new):
        async with plane.member(old):
            assert (await plane.ask()).provenance.worker_id == "new"
        assert (await plane.ask()).provenance.worker_id == "new"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"worker_id": ""}, "needs worker_id"),
        ({"address": ""}, "needs worker_id"),
        ({"worker_class": 77}, "of class 77"),
        ({"worker_id": "w" * 257}, "at most 256 characters"),
    ],
)
async def test_a_worker_that_cannot_be_used_is_rejected(
    plane: Plane, changes: dict[str, object], why: str
) -> None:
    membership = Membership(FakeWorker(), "127.0.0.1:1", plane.channel)
    directive = await membership.hello(**changes)
    assert why in directive.reject.reason
    assert await membership.call.read() is grpc.aio.EOF
    assert not plane.registry.workers()


async def test_the_first_report_must_be_a_hello(plane: Plane) -> None:
    membership = Membership(FakeWorker(), "127.0.0.1:1", plane.channel)
    await membership.report()
    assert await membership.call.code() == grpc.StatusCode.INVALID_ARGUMENT


async def test_the_status_shows_workers_pools_and_gauges(plane: Plane) -> None:
    worker = FakeWorker()
    async with plane.member(worker) as membership:
        await plane.ask()
        await membership.report(worker_pb2.WorkerLoad(completed_items=7, resident_bytes=123))
        await until(
            lambda: plane.registry.workers()[0].load.completed_items == 7, "the report arrived"
        )
        status = await plane.status()
        assert (status.controlplane_id, status.version) == ("cp", "1.2.3")
        assert status.policy == "orchid-cascade"
        assert status.workers[0].hello.worker_id == "w1"
        assert status.workers[0].state == "ready"
        assert status.workers[0].load.resident_bytes == 123
        pool = status.pools[0]
        assert (pool.model, pool.manifest_digest, pool.state) == ("tiny", "sha256:1", "ready")
        assert (pool.workers, pool.queued, pool.in_flight) == (1, 0, 0)
        assert dict(pool.outcomes) == {"answered": 1}
        best = pool.variants[0]
        assert (best.name, best.routable, best.answered) == ("tiny-a", True, 1)
        assert best.predicted_p50_us == pytest.approx(370.0)
        assert best.correction != 1.0
        assert status.expired_work_executed == 0
        assert status.resident_bytes > 0
        assert set(status.gauges.values()) == {0}


async def test_a_quality_of_zero_is_not_the_lack_of_one(plane: Plane) -> None:
    described = model()
    described.variants[0].ClearField("quality")
    described.variants[1].quality[0].value = 0.0
    async with plane.member(FakeWorker(models=[described])):
        variants = {v.name: v for v in (await plane.status()).pools[0].variants}
    assert not variants["tiny-a"].HasField("quality")
    assert variants["tiny-b"].HasField("quality") and variants["tiny-b"].quality == 0.0


async def test_a_drained_worker_gets_nothing_more(plane: Plane) -> None:
    draining, other = FakeWorker("draining"), FakeWorker("other")
    async with plane.member(draining) as membership:
        await membership.report(worker_pb2.WorkerLoad(draining=True))
        await until(lambda: plane.registry.workers()[0].state.value == "draining", "it is draining")
        async with plane.member(other):
            assert (await plane.ask()).provenance.worker_id == "other"
        await membership.report()
        await until(lambda: plane.registry.workers()[0].state.value == "ready", "it is ready")


async def test_the_repository_is_that_of_all_workers(plane: Plane) -> None:
    repository = FleetRepository(plane.fleet)
    assert list(repository.available()) == []
    async with plane.member(FakeWorker()):
        assert list(repository.available()) == ["spare", "tiny"]
        with pytest.raises(NotFound, match="models: spare, tiny"):
            await repository.load("other")
        with pytest.raises(WorkerFault, match="w1: UNIMPLEMENTED"):
            await repository.load("spare")
        with pytest.raises(WorkerFault, match="w1: UNIMPLEMENTED"):
            await repository.unload("tiny")


async def test_models_that_came_after_the_workers_can_be_loaded(plane: Plane) -> None:
    class Loading(FakeWorker):
        async def Load(self, request: worker_pb2.LoadRequest, context: Any) -> None:
            await context.write(worker_pb2.LoadProgress(model=model(request.model)))

    repository = FleetRepository(plane.fleet)
    worker = Loading()
    async with plane.member(worker):
        with pytest.raises(NotFound, match="no worker has model 'late'"):
            await repository.load("late")
        worker.available.append("late")
        await repository.load("late")
        assert list(repository.available()) == ["late", "spare", "tiny"]


async def test_unloading_at_once_what_another_call_unloads_is_done(plane: Plane) -> None:
    class Unloading(FakeWorker):
        async def Unload(self, request: worker_pb2.UnloadRequest, context: Any) -> None:
            await context.abort(grpc.StatusCode.NOT_FOUND, "it is not loaded", ())

        async def Load(self, request: worker_pb2.LoadRequest, context: Any) -> None:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "too large", ())

    async with plane.member(Unloading()):
        await FleetRepository(plane.fleet).unload("tiny")
        with pytest.raises(Unsatisfiable, match="w1: FAILED_PRECONDITION: too large"):
            await FleetRepository(plane.fleet).load("tiny")


async def test_the_status_has_the_memory_that_a_worker_told(plane: Plane) -> None:
    line = worker_pb2.MemoryLine(lifetime="weights", owner="tiny/tiny-a", bytes=7, most_bytes=9)
    told = worker_pb2.MemoryLedger(
        lines=[line], accounted_bytes=7, measured_bytes=8, available_bytes=5, limited_by="host"
    )
    async with plane.member(FakeWorker()) as membership:
        assert not (await plane.status()).workers[0].HasField("memory")
        await membership.call.write(fleet_pb2.WorkerReport(memory=told))
        await until(lambda: plane.registry.workers()[0].memory is not None, "the report arrived")
        assert (await plane.status()).workers[0].memory == told
