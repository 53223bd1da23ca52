"""ModelStreamInfer: many in flight, ids echoed, faults told one by one."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import numpy as np

from controlplane.errors import Refused, Unavailable
from protos.inference import oip_pb2
from tests.contract.controlplane.front_door import MODEL, Door, front_door
from tests.contract.controlplane.oip_client import (
    ids_request,
    output_array,
    raw_stream,
    stub,
    text_request,
)

Response = oip_pb2.ModelStreamInferResponse


async def answers(call: Any, count: int) -> dict[str, Response]:
    """The next `count` messages by the id they carry."""
    async with asyncio.timeout(60):
        messages = [await call.read() for _ in range(count)]
    return {message.infer_response.id: message for message in messages}


async def test_answers_equal_unary_answers() -> None:
    requests = [
        text_request("good film", request_id="a"),
        ids_request([[3, 4], [5, 6]], request_id="b"),
        text_request(*["bad plot"] * 90, request_id="long"),
        text_request("bad", request_id="c", triton_enable_empty_final_response=True),
    ]
    async with front_door() as door:
        call = stub(door).ModelStreamInfer()
        for request in requests:
            await call.write(request)
        await call.done_writing()
        streamed = await answers(call, len(requests))
        assert await call.read() is grpc.aio.EOF
        assert await call.code() is grpc.StatusCode.OK
        for request in requests:
            unary = await stub(door).ModelInfer(request)
            message = streamed[request.id]
            assert message.error_message == ""
            final = message.infer_response.parameters.pop("triton_final_response")
            assert final.bool_param is True
            assert message.infer_response == unary


async def test_answers_come_as_they_finish() -> None:
    async with front_door() as door:
        door.queue.hold = True
        call = stub(door).ModelStreamInfer()
        for index in range(8):
            await call.write(ids_request([[3, index % 8]], request_id=str(index)))
        await door.queue.until(lambda: len(door.queue.requests) == 8)
        order = [5, 0, 7, 1, 6, 2, 4, 3]
        for index in order:
            door.queue.release(door.queue.requests[index].id)
            (message,) = (await answers(call, 1)).values()
            assert message.infer_response.id == str(index)
            assert output_array(message.infer_response)[0, 0] == 3 + index
        call.cancel()


async def test_a_fault_answers_its_message_and_the_stream_goes_on() -> None:
    async with front_door() as door:
        call = stub(door).ModelStreamInfer()
        await call.write(oip_pb2.ModelInferRequest(model_name="nope", id="missing"))
        await call.write(ids_request([[3, -4]], request_id="negative"))
        await call.write(text_request("good", request_id="late", deadline_ms=-5))
        await call.write(text_request("good", request_id="fine"))
        got = await answers(call, 4)
        door.queue.refuse = Refused("the queue holds 7 items", 120)
        await call.write(text_request("good", request_id="refused"))
        got |= await answers(call, 1)
        door.queue.refuse = None
        door.queue.fail = ValueError("a secret")
        await call.write(text_request("good", request_id="broken"))
        got |= await answers(call, 1)
        door.queue.fail = Unavailable("no worker has it", 50)
        await call.write(text_request("good", request_id="nobody"))
        got |= await answers(call, 1)
        await call.done_writing()
        assert await call.code() is grpc.StatusCode.OK
    assert got["missing"].error_message.startswith("NOT_FOUND: no model 'nope'")
    assert got["negative"].error_message.startswith("INVALID_ARGUMENT: ")
    assert got["late"].error_message.startswith("DEADLINE_EXCEEDED: ")
    assert got["fine"].error_message == ""
    assert got["refused"].error_message == "RESOURCE_EXHAUSTED: the queue holds 7 items"
    parameters = got["refused"].infer_response.parameters
    assert parameters["retry_after_ms"].int64_param == 120
    assert parameters["grpc_code"].int64_param == 8
    assert parameters["triton_final_response"].bool_param is True
    assert got["broken"].error_message.startswith("INTERNAL: ")
    assert "secret" not in got["broken"].error_message
    assert got["nobody"].infer_response.parameters["retry_after_ms"].int64_param == 50


async def test_undecodable_bytes_answer_and_the_stream_goes_on() -> None:
    async with front_door() as door:
        call = raw_stream(door.channel)()
        await call.write(b"\xff\xff\xff\x07")
        first = Response.FromString(await call.read())
        await call.write(text_request("good", request_id="x").SerializeToString())
        second = Response.FromString(await call.read())
        await call.done_writing()
        assert await call.code() is grpc.StatusCode.OK
    assert "not a valid inference.ModelInferRequest" in first.error_message
    assert (second.error_message, second.infer_response.id) == ("", "x")


async def test_cancelling_the_stream_cancels_what_is_in_flight() -> None:
    async with front_door() as door:
        door.queue.hold = True
        call = stub(door).ModelStreamInfer()
        for index in range(5):
            await call.write(ids_request([[3]], request_id=str(index)))
        await door.queue.until(lambda: len(door.queue.requests) == 5)
        call.cancel()
        await door.queue.until(lambda: len(door.queue.cancelled) == 5)
        assert {r.id for r in door.queue.cancelled} == {r.id for r in door.queue.requests}


async def test_closing_the_channel_cancels_what_is_in_flight() -> None:
    async with front_door() as door:
        door.queue.hold = True
        channel = grpc.aio.insecure_channel(
            door.address, options=[("grpc.use_local_subchannel_pool", 1)]
        )
        call = raw_stream(channel)()
        await call.write(ids_request([[3]]).SerializeToString())
        await door.queue.until(lambda: len(door.queue.requests) == 1)
        await channel.close()
        await door.queue.until(lambda: len(door.queue.cancelled) == 1)


async def test_half_closing_still_answers_what_is_in_flight() -> None:
    async with front_door() as door:
        door.queue.hold = True
        call = stub(door).ModelStreamInfer()
        await call.write(ids_request([[3, 4]], request_id="a"))
        await call.done_writing()
        await door.queue.until(lambda: len(door.queue.requests) == 1)
        door.queue.release(door.queue.requests[0].id)
        assert set(await answers(call, 1)) == {"a"}
        assert await call.code() is grpc.StatusCode.OK
        assert door.queue.cancelled == []


async def test_a_caller_that_reads_nothing_is_held_back() -> None:
    """Only so many requests of one stream are read ahead of their answers."""
    total = 3000
    async with front_door() as door:
        door.queue.hold = True
        call = stub(door).ModelStreamInfer()

        async def send() -> None:
            for index in range(total):
                await call.write(ids_request([[3]], request_id=str(index)))
            await call.done_writing()

        sending = asyncio.create_task(send())
        await door.queue.until(lambda: len(door.queue.requests) == 1024)
        for _ in range(50):
            await asyncio.sleep(0)
        assert len(door.queue.requests) == 1024
        door.queue.hold = False
        for request_id in list(door.queue.pending):
            door.queue.release(request_id)
        got = await answers(call, total)
        await sending
        assert len(got) == total
        assert await call.code() is grpc.StatusCode.OK


async def test_the_deadline_of_the_stream_is_that_of_its_messages() -> None:
    async with front_door() as door:
        call = stub(door).ModelStreamInfer(timeout=30)
        await call.write(text_request("good", request_id="a"))
        await call.write(text_request("good", request_id="b", deadline_ms=100))
        await answers(call, 2)
        await call.done_writing()
    first, second = (r.deadline_ns - r.arrived_ns for r in door.queue.requests)
    assert 10e9 < first < 31e9
    assert second == 100_000_000


async def test_counters_count_streamed_requests() -> None:
    async with front_door() as door:
        call = stub(door).ModelStreamInfer()
        for _ in range(3):
            await call.write(text_request("good", "bad"))
        await call.write(text_request("good", minimum_quality=7.0))
        async with asyncio.timeout(60):
            for _ in range(4):
                await call.read()
        await call.done_writing()
        assert await call.code() is grpc.StatusCode.OK
        assert await counted(door) == (3, 6)


async def counted(door: Door) -> tuple[int, int]:
    response = await stub(door).ModelStatistics(oip_pb2.ModelStatisticsRequest(name=MODEL))
    (stats,) = response.model_stats
    assert np.isclose(stats.inference_stats.success.ns, 3 * 500_000)
    return stats.inference_stats.success.count, stats.inference_count


async def test_stopping_answers_what_is_in_flight_and_ends_the_stream() -> None:
    async with front_door() as door:
        idle, busy = stub(door).ModelStreamInfer(), stub(door).ModelStreamInfer()
        await idle.write(ids_request([[3]], request_id="first"))
        assert set(await answers(idle, 1)) == {"first"}
        door.queue.hold = True
        await busy.write(ids_request([[3, 4]], request_id="a"))
        await door.queue.until(lambda: len(door.queue.requests) == 2)
        stopping = asyncio.create_task(door.server.stop(30))
        async with asyncio.timeout(60):
            assert await idle.code() is grpc.StatusCode.UNAVAILABLE
            door.queue.release(door.queue.requests[1].id)
            assert set(await answers(busy, 1)) == {"a"}
            assert await busy.code() is grpc.StatusCode.UNAVAILABLE
            assert ("retry-after-ms", "1000") in list(await busy.trailing_metadata())
            await stopping
        assert door.queue.cancelled == []
