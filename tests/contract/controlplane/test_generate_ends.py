"""Every way a generation can end before its time: nothing stays behind, every caller hears why."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import numpy as np
import pytest

from controlplane.errors import Unavailable
from controlplane.generation.open import Generation
from controlplane.generation.records import Delta, GenerationAsk, TextPrompt
from controlplane.generation.work import WorkerEvent
from controlplane.rpc.generate_worker import WorkerGeneration
from protos.orchid.v1 import common_pb2, inference_pb2, worker_pb2
from tests.contract.controlplane.decode_worker import (
    WRITER,
    DecodeWorker,
    Writers,
    admitted,
    ask,
    delta,
    dying,
    echo,
    ended,
    endless,
    full,
    limits,
    refusal,
    rest,
    silent,
    text_of,
    writer,
    writers,
)
from tests.contract.controlplane.fake_worker import until

CODE = grpc.StatusCode
UNENDING = 17


async def test_a_cancel_ends_the_workers_call_at_once() -> None:
    worker = DecodeWorker(script=endless)
    async with writers(worker) as house:
        call = house.inference.Generate(ask())
        events = [await call.read() for _ in range(3)]
        assert isinstance(events[-1], inference_pb2.GenerateResponse)
        call.cancel()
        await until(lambda: worker.open == 0, "the worker's call has ended")
        await house.at_rest()
        assert dict((await house.status()).generators[0].outcomes) == {"cancelled": 1}


async def _leave_drained(house: Writers, worker: DecodeWorker) -> None:
    """The worker says that it drains, and leaves."""
    session = house.registry.session_of(worker.name)
    assert session is not None
    await house.memberships[worker.name].report(worker_pb2.WorkerLoad(draining=True))
    await until(lambda: session.load.draining, "the report is there")
    await house.leave(worker)


async def test_a_worker_that_leaves_when_it_has_drained_is_heard_to_its_end() -> None:
    left = asyncio.Event()

    async def late(worker: DecodeWorker, call: worker_pb2.GenerateCall, context: Any) -> None:
        await context.write(admitted(call))
        await context.write(delta("once ", 4))
        await left.wait()
        await context.write(delta("upon ", 5))
        for event in ended(call, 2):
            await context.write(event)

    worker = DecodeWorker(script=late)
    async with writers(worker) as house:
        call = house.inference.Generate(ask())
        for _ in range(2):
            await call.read()
        await _leave_drained(house, worker)
        left.set()
        events = await rest(call)
        assert text_of(events) == "upon "
        assert events[-1].completed.usage.generated_tokens == 2
        await house.at_rest()


async def test_a_drained_worker_that_leaves_and_says_nothing_more_is_lost() -> None:
    worker = DecodeWorker(script=endless)
    async with writers(worker) as house:
        call = house.inference.Generate(ask())
        for _ in range(3):
            await call.read()
        await _leave_drained(house, worker)
        error, _ = await refusal(call)
        assert error.code() is CODE.UNAVAILABLE
        assert "was lost after 2 tokens" in str(error.details())
        await until(lambda: worker.open == 0, "the worker's call has ended")
        await house.at_rest()


async def test_a_cancel_before_the_first_token_ends_the_workers_call() -> None:
    async def waiting(worker: DecodeWorker, call: object, context: object) -> None:
        await asyncio.Event().wait()

    worker = DecodeWorker(script=waiting)
    async with writers(worker) as house:
        call = house.inference.Generate(ask())
        reading = asyncio.create_task(call.read())
        await until(lambda: worker.open == 1, "the worker has it")
        call.cancel()
        await until(lambda: worker.open == 0, "the worker's call has ended")
        with pytest.raises(asyncio.CancelledError):
            await reading
        await house.at_rest()


async def test_a_client_whose_connection_breaks_frees_everything() -> None:
    worker = DecodeWorker(script=endless)
    async with writers(worker) as house:
        async with grpc.aio.insecure_channel(house.address) as channel:
            call = channel.unary_stream(
                "/orchid.v1.Inference/Generate",
                request_serializer=inference_pb2.GenerateRequest.SerializeToString,
                response_deserializer=inference_pb2.GenerateResponse.FromString,
            )(ask())
            await call.read()
            assert worker.open == 1
        await until(lambda: worker.open == 0, "the worker's call has ended")
        await house.at_rest()


async def test_the_callers_deadline_ends_the_workers_call() -> None:
    worker = DecodeWorker(script=silent)
    async with writers(worker) as house:
        error, events = await refusal(house.inference.Generate(ask(), timeout=0.3))
        assert error.code() is CODE.DEADLINE_EXCEEDED
        assert not text_of(events)
        await until(lambda: worker.open == 0, "the worker's call has ended")
        await house.at_rest()


async def test_an_explicit_deadline_is_answered_though_the_worker_is_silent() -> None:
    worker = DecodeWorker(script=silent)
    async with writers(worker) as house:
        error, _ = await refusal(house.inference.Generate(ask(deadline_ms=200)))
        assert error.code() is CODE.DEADLINE_EXCEEDED
        assert all(call.budget_us < 200_000 for call in worker.calls)
        await until(lambda: worker.open == 0, "the worker's call has ended")
        await house.at_rest()


async def test_what_came_before_the_deadline_is_an_answer() -> None:
    async def cut(worker: DecodeWorker, call: worker_pb2.GenerateCall, context: Any) -> None:
        await context.write(admitted(call))
        await context.write(delta("once ", 4))
        for event in ended(call, 1, common_pb2.FINISH_REASON_DEADLINE):
            await context.write(event)

    async with writers(DecodeWorker(script=cut)) as house:
        events = await rest(house.inference.Generate(ask()))
        assert events[-2].finished.reason == common_pb2.FINISH_REASON_DEADLINE
        assert text_of(events) == "once "


async def test_a_worker_that_breaks_before_the_first_token_is_replaced() -> None:
    first, second = DecodeWorker("first", script=dying), DecodeWorker("second")
    async with writers(first) as house:
        await house.join(second)
        # The other one is busier, so that the one that breaks is tried first.
        await house.load(second, pending_prompt_tokens=500)
        events = await rest(house.inference.Generate(ask()))
        assert events[-1].completed.provenance.worker_id == "second"
        assert events[-1].completed.provenance.reason == "deadline-only"
        assert (len(first.calls), len(second.calls)) == (1, 1)
        await house.at_rest()
        (generator,) = (await house.status()).generators
        assert generator.redispatched == 1 and dict(generator.outcomes) == {"answered": 1}


async def test_a_worker_that_is_killed_while_it_reads_a_prompt_is_replaced() -> None:
    first, second = DecodeWorker("first", script=silent), DecodeWorker("second")
    async with writers(first) as house:
        call = house.inference.Generate(ask())
        before = await call.read()
        assert isinstance(before, inference_pb2.GenerateResponse)
        await house.join(second)
        await house.kill(first)
        events = [before, *await rest(call)]
        kinds = [event.WhichOneof("event") for event in events]
        assert kinds[:2] == ["admitted", "admitted"] and kinds[-1] == "completed"
        assert [e.admitted.provenance.worker_id for e in events[:2]] == ["first", "second"]
        assert text_of(events) == "once upon a time "
        await house.at_rest()


async def test_a_worker_whose_registration_ends_loses_its_generations() -> None:
    worker = DecodeWorker(script=silent)
    async with writers(worker) as house:
        call = house.inference.Generate(ask())
        await call.read()
        await house.leave(worker)
        error, _ = await refusal(call)
        assert error.code() is CODE.UNAVAILABLE
        await until(lambda: worker.open == 0, "the worker's call has ended")
        await house.at_rest()


async def test_a_worker_that_is_killed_in_mid_answer_ends_it() -> None:
    first, second = DecodeWorker("first", script=endless), DecodeWorker("second")
    async with writers(first) as house:
        call = house.inference.Generate(ask())
        said = [await call.read() for _ in range(3)]
        await house.join(second)
        await house.kill(first)
        error, rest = await refusal(call)
        assert error.code() is CODE.UNAVAILABLE and not rest
        assert error.details() == (
            "worker first was lost after 2 tokens of the answer; what came before holds"
        )
        assert "retry-after-ms" in dict(error.trailing_metadata() or ())
        assert text_of(e for e in said if isinstance(e, inference_pb2.GenerateResponse))
        assert second.calls == []
        await house.at_rest()


async def test_a_worker_that_lost_its_model_is_asked_no_more_and_says_why() -> None:
    worker, other = DecodeWorker(), DecodeWorker("d2")
    async with writers(worker, other) as house:
        lost = writer(ready=False)
        lost.state, lost.progress = common_pb2.READINESS_STATE_FAILED, 1.0
        lost.failure = "variant 'writer-q4' was lost: the lane failed with RuntimeError"
        await house.models(worker, lost)
        for _ in range(3):
            assert await rest(house.inference.Generate(ask()))
        assert (len(worker.calls), len(other.calls)) == (0, 3)
        (generator,) = (await house.status()).generators
        assert [lane.worker_id for lane in generator.lanes] == ["d2"]
        assert generator.state == f"ready; d1 failed: {lost.failure}"
        await house.models(other, lost)
        error, _ = await refusal(house.inference.Generate(ask()))
        assert error.code() is CODE.UNAVAILABLE and lost.failure in str(error.details())
        (generator,) = (await house.status()).generators
        assert generator.state == f"failed; d1 failed: {lost.failure}; d2 failed: {lost.failure}"


async def test_an_answer_without_its_end_is_a_loss() -> None:
    async def half(worker: DecodeWorker, call: worker_pb2.GenerateCall, context: Any) -> None:
        await context.write(admitted(call))
        await context.write(delta("once ", 4))

    async with writers(DecodeWorker(script=half)) as house:
        error, events = await refusal(house.inference.Generate(ask()))
        assert error.code() is CODE.UNAVAILABLE and text_of(events) == "once "


async def test_a_lone_worker_that_breaks_leaves_nobody() -> None:
    async with writers(DecodeWorker(script=dying)) as house:
        error, _ = await refusal(house.inference.Generate(ask()))
        assert error.code() is CODE.UNAVAILABLE
        assert "no other decode worker has model 'writer'" in str(error.details())
        await house.at_rest()


async def test_when_all_refuse_the_caller_hears_when_to_come_back() -> None:
    async with writers(DecodeWorker("one", script=full), DecodeWorker("two", script=full)) as house:
        error, _ = await refusal(house.inference.Generate(ask()))
        assert error.code() is CODE.RESOURCE_EXHAUSTED
        assert dict(error.trailing_metadata() or ())["retry-after-ms"] == "70"
        await house.at_rest()


async def test_while_workers_gather_an_unknown_model_is_unavailable() -> None:
    async with writers(DecodeWorker()) as house:
        house.registry.gathering = True
        error, _ = await refusal(house.inference.Generate(ask(model="nope")))
        assert error.code() is CODE.UNAVAILABLE
        assert dict(error.trailing_metadata() or ())["retry-after-ms"] == "1000"
        await house.at_rest()


async def test_a_first_token_that_comes_as_its_worker_is_given_up_came_too_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, second = DecodeWorker("first", script=endless), DecodeWorker("second")
    async with writers(first) as house:
        await house.join(second)
        await house.load(second, pending_prompt_tokens=500)
        told = WorkerGeneration.next
        given_up: list[Generation] = []

        async def next_event(call: WorkerGeneration) -> WorkerEvent:
            event = await told(call)
            if isinstance(event, Delta) and not given_up:
                given_up.extend(house.generations._open.values())
                given_up[0].abandon()
            return event

        monkeypatch.setattr(WorkerGeneration, "next", next_event)
        events = await rest(house.inference.Generate(ask()))
        assert events[-1].completed.provenance.worker_id == "second"
        assert text_of(events) == "once upon a time "
        await house.at_rest()


async def test_a_slow_caller_holds_its_worker_back() -> None:
    piece = "x" * 16_000

    async def flood(worker: DecodeWorker, call: worker_pb2.GenerateCall, context: Any) -> None:
        await context.write(admitted(call))
        for _ in range(4000):
            await context.write(delta(piece, 4))
            worker.written += 1
        for event in ended(call, 4000):
            await context.write(event)

    worker = DecodeWorker(script=flood)
    async with writers(worker) as house:
        call = house.inference.Generate(ask())
        await call.read()
        last = -1
        while worker.written != last:
            last = worker.written
            await asyncio.sleep(0.2)
        # 64 MB are to be said; only what the windows of two connections hold has been.
        assert 0 < worker.written < 2000
        assert house.generations.gauges()["generations"] == 1
        told = sum(event.HasField("delta") for event in await rest(call))
        assert told == worker.written == 4000
        await house.at_rest()


async def test_a_storm_of_cancels_leaves_every_gauge_at_zero() -> None:
    async def slowly(worker: DecodeWorker, call: worker_pb2.GenerateCall, context: Any) -> None:
        await context.write(admitted(call))
        for token in (4, 5, 6, 7):
            await asyncio.sleep(0)
            await context.write(delta("x ", token))
        for event in ended(call, 4):
            await context.write(event)

    # Most cancels race with the end of an answer; those of answers without an end cannot lose.
    async def either(worker: DecodeWorker, call: worker_pb2.GenerateCall, context: Any) -> None:
        await (endless if call.limits.max_tokens == UNENDING else slowly)(worker, call, context)

    workers = DecodeWorker("one", script=either), DecodeWorker("two", script=either)
    draws = np.random.default_rng(4)
    codes: list[str] = []

    async def caller(reads: int, give_up: bool, unending: bool) -> None:
        request = ask(limits=limits(max_tokens=UNENDING)) if unending else ask()
        call = house.inference.Generate(request)
        try:
            if unending:
                for _ in range(reads % 3):
                    await call.read()
                call.cancel()
            elif give_up:
                for _ in range(reads):
                    await call.read()
                call.cancel()
            else:
                await rest(call)
            codes.append((await call.code()).name)
        except (asyncio.CancelledError, grpc.aio.AioRpcError):
            codes.append("CANCELLED")

    async with writers(*workers) as house:
        for _ in range(10):
            await asyncio.gather(
                *(caller(int(draws.integers(8)), draws.random() < 0.8, n < 20) for n in range(50))
            )
        assert len(codes) == 500 and codes.count("CANCELLED") >= 200
        assert {*codes} <= {"CANCELLED", "OK"}
        await until(lambda: not any(w.open for w in workers), "no worker holds a call")
        await house.at_rest()
        (generator,) = (await house.status()).generators
        # A call that was cancelled before it was read is no generation.
        assert sum(generator.outcomes.values()) <= 500
        assert {*generator.outcomes} <= {"answered", "cancelled"}
        assert generator.open == 0 and not any(lane.open for lane in generator.lanes)
        # A worker that is asked as ever after all of this.
        events = await rest(house.inference.Generate(ask()))
        assert events[-1].HasField("completed")


async def test_the_bound_on_open_generations_is_exact() -> None:
    worker = DecodeWorker(script=endless)
    async with writers(worker, max_generations=3) as house:
        calls = [house.inference.Generate(ask()) for _ in range(3)]
        for call in calls:
            await call.read()
        error, _ = await refusal(house.inference.Generate(ask()))
        assert error.code() is CODE.RESOURCE_EXHAUSTED
        assert "3 generations are open" in str(error.details())
        assert int(dict(error.trailing_metadata() or ())["retry-after-ms"]) >= 1
        calls[0].cancel()
        await until(lambda: worker.open == 2, "one has ended")
        await until(lambda: house.generations.gauges()["generations"] == 2, "and is counted")
        assert await house.inference.Generate(ask()).read()
        for call in calls:
            call.cancel()


async def test_a_drain_lets_answers_end_and_opens_no_more() -> None:
    going = asyncio.Event()

    async def held(worker: DecodeWorker, call: worker_pb2.GenerateCall, context: Any) -> None:
        await context.write(admitted(call))
        await going.wait()
        await context.write(delta("time", 7))
        for event in ended(call, 1):
            await context.write(event)

    async with writers(DecodeWorker(script=held)) as house:
        call = house.inference.Generate(ask())
        await call.read()
        house.generations.drain()
        error, _ = await refusal(house.inference.Generate(ask()))
        assert error.code() is CODE.UNAVAILABLE and "shutting down" in str(error.details())
        going.set()
        assert text_of(await rest(call)) == "time"


async def test_a_close_tells_every_reader() -> None:
    worker = DecodeWorker(script=endless)
    async with writers(worker) as house:
        opened = await house.generations.open(GenerationAsk(WRITER, TextPrompt("once")))
        call = house.inference.Generate(ask())
        await call.read()
        house.generations.close()
        error, _ = await refusal(call)
        assert error.code() is CODE.UNAVAILABLE and "shutting down" in str(error.details())
        with pytest.raises(Unavailable):
            async for _ in opened:
                pass
        await until(lambda: worker.open == 0, "the worker's calls have ended")
        assert not any(house.generations.gauges().values())


async def test_a_silent_worker_gives_way_to_another() -> None:
    mute, other = DecodeWorker("mute", script=silent), DecodeWorker("other", script=echo)
    async with writers(mute, report_interval_ms=20) as house:
        call = house.inference.Generate(ask())
        await call.read()
        # It joins late and reports; the first one has not said anything since it joined.
        await house.join(other)
        reporting = asyncio.create_task(_report(house, other))
        try:
            events = await rest(call)
        finally:
            reporting.cancel()
        assert events[-1].completed.provenance.worker_id == "other"
        await until(lambda: mute.open == 0, "the silent worker's call has ended")


async def _report(house: Any, worker: DecodeWorker) -> None:
    while True:
        await house.memberships[worker.name].report()
        await asyncio.sleep(0.01)


async def test_limits_of_one_answer_do_not_reach_another() -> None:
    async with writers(DecodeWorker()) as house:

        async def told(count: int) -> str:
            call = house.inference.Generate(ask(limits=limits(max_tokens=count)))
            return text_of(await rest(call))

        words = await asyncio.gather(*(told(1 + number % 4) for number in range(40)))
        whole = ["once", "upon", "a", "time"]
        assert [w.split() for w in words] == [whole[: 1 + n % 4] for n in range(40)]
