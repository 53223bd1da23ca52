"""Execute over a real connection: every item is answered exactly once, rightly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from protos.orchid.v1 import common_pb2
from protos.orchid.v1 import worker_pb2 as pb
from tests.contract.worker.serving import (
    MINUTE_US,
    Stream,
    batch,
    floats,
    one,
    serve,
    tensor_item,
    token_item,
)
from worker.models.synthetic import reference_logits, tiny_weights


def status(result: pb.ItemResult) -> str:
    return pb.ItemStatus.Name(result.status).removeprefix("ITEM_STATUS_")


async def test_a_batch_is_run_once_and_answered_item_by_item(repository: Path) -> None:
    async with serve(repository) as served:
        stream = Stream(served)
        rows = ([2, 9, 30, 3], [2, 40, 3], [2, 3])
        await stream.send(batch(7, token_item(1, rows[0]), token_item(2, rows[1], rows[2])))
        results = await stream.receive(2)
        weights = tiny_weights(seed=1, layers=4, max_tokens=512)
        assert results[1].outputs[0].name == "logits"
        assert np.allclose(floats(results[1]), [reference_logits(weights, rows[0])], atol=1e-4)
        expected = [reference_logits(weights, row) for row in rows[1:]]
        assert np.allclose(floats(results[2]), expected, atol=1e-4)
        done = stream.batches[7]
        assert (done.tokens, done.executed_items) == (9, 2)
        assert done.run_us > 0 and done.cpu_us > 0 and done.queue_us >= 0
        assert done.peak_bytes > 0
        load = stream.messages[-1].load
        assert (load.completed_items, load.queued_items, load.running_items) == (2, 0, 0)
        assert load.resident_bytes > 0 and load.run_cpu_us > 0
        await stream.finish()


async def test_good_items_are_not_held_up_by_bad_ones(repository: Path) -> None:
    async with serve(repository, ("tiny", "adder")) as served:
        stream = Stream(served)
        odd = pb.Item(item_id=3, budget_us=MINUTE_US)
        odd.tokens.token_ids = b"12345"
        both = token_item(4, [2, 3])
        both.tensors.add(name="a")
        ones = np.ones(2, np.float32)
        short = tensor_item(21, a=ones, b=ones)
        short.tensors[0].data = b"1234"
        no_type = tensor_item(22, a=ones, b=ones)
        no_type.tensors[0].data_type = common_pb2.DATA_TYPE_UNSPECIFIED
        twice = tensor_item(23, a=ones, b=ones)
        twice.tensors[1].name = "a"
        deep = tensor_item(24, a=ones[:1], b=ones)
        deep.tensors[0].shape[:] = [1] * 70
        empty = tensor_item(25, a=ones[:0], b=ones)
        empty.tensors[0].shape[:] = [2**62, 2**62, 0]
        await stream.send(
            batch(
                *(1, token_item(1, [2, 3]), token_item(2, [2, -4]), odd, both),
                *(token_item(5), token_item(6, [2] * 513), tensor_item(7, a=ones)),
                token_item(8, [2, 5, 3], budget_us=0),
                token_item(9, [2, 5, 3], budget_us=-5),
            ),
            batch(2, token_item(10, [2, 3]), variant="tiny-z"),
            batch(3, token_item(11, [2, 3]), model="huge"),
            batch(4, token_item(12, [2, 3]), model="adder", variant="adder"),
            batch(
                *(5, tensor_item(20, a=ones, b=ones), short, no_type, twice, deep, empty),
                model="adder",
                variant="adder",
            ),
            batch(6),
        )
        await stream.receive(18)
        assert {i: status(r) for i, r in stream.results.items()} == {
            1: "OK",
            **dict.fromkeys((2, 3, 4, 5, 6, 7), "INVALID_ARGUMENT"),
            **dict.fromkeys((8, 9), "EXPIRED"),
            **dict.fromkeys((10, 11), "NOT_FOUND"),
            **dict.fromkeys((12, 21, 22, 23, 24, 25), "INVALID_ARGUMENT"),
            20: "OK",
        }
        assert np.array_equal(floats(stream.results[20]), [2, 2])
        assert "tiny-a, tiny-b" in stream.results[10].message
        assert "tiny" in stream.results[11].message
        await stream.finish()
        assert stream.batches[6].items[:] == []
        assert served.encoder.engine.state().expired_items_executed == 0


async def test_an_id_in_flight_cannot_be_used_again(repository: Path) -> None:
    async with serve(repository) as served:
        stream = Stream(served)
        async with served.engine_held():
            await stream.send(batch(1, token_item(1, [2, 3])))
            await stream.send(batch(2, token_item(1, [2, 3])))
            (refused,) = (await stream.next_message()).results
            assert refused.batch_id == 2
            assert status(refused.items[0]) == "INVALID_ARGUMENT"
        assert status((await stream.receive(1))[1]) == "OK"
        await stream.send(batch(3, token_item(2, [2, 3]), token_item(2, [2, 3])))
        message = await stream.next_message()
        assert [status(item) for item in message.results[0].items] == ["OK", "INVALID_ARGUMENT"]
        await stream.finish()


async def test_expiry_is_answered_at_expiry_while_the_engine_is_busy(repository: Path) -> None:
    async with serve(repository) as served:
        stream = Stream(served)
        async with served.engine_held():
            await stream.send(one(1, budget_us=20_000), one(2))
            results = await stream.receive(1)
            assert status(results[1]) == "EXPIRED"
            assert stream.batches[1].executed_items == 0 and stream.batches[1].run_us == 0
            assert stream.messages[-1].load.queued_items == 1
        assert status((await stream.receive(2))[2]) == "OK"
        assert served.encoder.engine.state().expired_items_executed == 0
        await stream.finish()


async def test_cancelled_queued_work_is_dropped(repository: Path) -> None:
    async with serve(repository) as served:
        stream = Stream(served)
        async with served.engine_held():
            await stream.send(one(1), batch(2, token_item(2, [2, 3]), token_item(3, [2, 3])))
            await stream.send(cancel=[1, 2, 99])
            assert status((await stream.receive(1))[1]) == "CANCELLED"
        results = await stream.receive(3)
        assert (status(results[2]), status(results[3])) == ("CANCELLED", "OK")
        # The batch and its cancellation may leave in one message.
        async with served.engine_held():
            await stream.send(one(4), cancel=[4])
            assert status((await stream.receive(4))[4]) == "CANCELLED"
        await stream.finish()


def slow(item_id: int, budget_us: int = MINUTE_US) -> pb.Batch:
    item = tensor_item(item_id, budget_us, x=np.ones(1, np.float32))
    return batch(item_id, item, model="slow", variant="slow")


async def test_running_work_is_terminated(repository: Path) -> None:
    async with serve(repository, ("slow",)) as served:
        running = lambda: served.encoder.engine.state().running_items == 1  # noqa: E731
        stream = Stream(served)
        # Cancelled by its caller.
        await stream.send(slow(1))
        await served.until(running)
        await stream.send(cancel=[1])
        assert status((await stream.receive(1))[1]) == "CANCELLED"
        assert stream.batches[1].executed_items == 1
        # Past its deadline.
        await stream.send(slow(2, budget_us=50_000))
        assert status((await stream.receive(2))[2]) == "EXPIRED"
        assert stream.batches[2].run_us > 0
        # Left by its caller.
        await stream.send(slow(3), slow(4))
        await served.until(running)
        await stream.finish()
        assert {status(stream.results[i]) for i in (3, 4)} == {"CANCELLED"}
        # Its caller's connection broke.
        stream = Stream(served)
        await stream.send(slow(5), slow(6))
        await served.until(running)
        stream.call.cancel()
        await served.until(lambda: served.encoder.engine.state().queued_items == 0)
        await served.until(lambda: served.encoder.engine.state().running_items == 0)
        state = served.encoder.engine.state()
        assert (state.completed_items, state.expired_items_executed) == (0, 0)


async def test_the_queue_bound_is_exact_over_several_streams(repository: Path) -> None:
    async with serve(repository, max_queued_items=16) as served:
        streams = [Stream(served) for _ in range(4)]
        async with served.engine_held():
            for number, stream in enumerate(streams):
                await stream.send(*(one(number * 10 + i) for i in range(8)))
                await stream.settled()
            assert served.encoder.engine.state().queued_items == 16
            assert sum(len(stream.results) for stream in streams) == 16
        for stream in streams:
            await stream.receive(8)
            await stream.finish()
        answers = [status(r) for stream in streams for r in stream.results.values()]
        assert sorted(answers) == ["OK"] * 16 + ["UNAVAILABLE"] * 16


async def test_results_that_are_ready_together_share_a_message(repository: Path) -> None:
    async with serve(repository) as served:
        stream = Stream(served)
        async with served.engine_held():
            await stream.send(*(one(i) for i in range(32)))
            await stream.send(cancel=range(32))
            await stream.receive(32)
        assert len(stream.messages) == 1
        await stream.finish()


async def test_a_storm_of_cancels_leaves_every_gauge_at_zero(repository: Path) -> None:
    async with serve(repository) as served:
        stream = Stream(served)
        for start in range(0, 10_000, 100):
            ids = range(start, start + 100)
            await stream.send(*(one(i) for i in ids))
            await stream.send(cancel=ids)
            await stream.receive(start + 100)
        kinds = {status(result) for result in stream.results.values()}
        assert kinds <= {"OK", "CANCELLED"}
        # Streams that break with everything in flight.
        for _ in range(20):
            broken = Stream(served)
            await broken.send(*(one(i) for i in range(50)))
            broken.call.cancel()
        await served.until(lambda: served.encoder.engine.state().queued_items == 0)
        await served.until(lambda: served.encoder.engine.state().running_items == 0)
        await stream.send(one(10_001))
        assert status((await stream.receive(10_001))[10_001]) == "OK"
        load = stream.messages[-1].load
        assert (load.queued_items, load.running_items, load.expired_items_executed) == (0, 0, 0)
        await stream.finish()


async def test_the_end_of_a_stream_answers_what_was_queued(repository: Path) -> None:
    async with serve(repository) as served:
        stream = Stream(served)
        async with served.engine_held():
            await stream.send(one(1), one(2))
            await stream.settled()
            await stream.finish()
        assert [status(r) for r in stream.results.values()] == ["CANCELLED"] * 2
        assert await stream.call.code() == grpc.StatusCode.OK


async def test_results_that_exceed_a_message_travel_in_several(repository: Path) -> None:
    async with serve(repository, ("adder",), max_message_bytes=1 << 20) as served:
        stream = Stream(served)
        big = np.ones(150_000, np.float32)
        async with served.engine_held():
            for i in range(2):
                item = tensor_item(i, a=big[:100_000], b=big[:100_000])
                await stream.send(batch(i, item, model="adder", variant="adder"))
            await stream.send(cancel=[9])
        await stream.receive(2)
        assert {status(r) for r in stream.results.values()} == {"OK"}
        # One message that is larger than the limit cannot be read: the call ends, with a status.
        await stream.send(batch(3, tensor_item(3, a=big, b=big), model="adder", variant="adder"))
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stream.receive(3)
        assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_a_large_output_is_the_same_as_a_small_one(repository: Path) -> None:
    async with serve(repository, ("adder",)) as served:
        stream = Stream(served)
        a = np.arange(600_000, dtype=np.float32)
        item = tensor_item(1, a=a, b=a[::-1])
        await stream.send(batch(1, item, model="adder", variant="adder"))
        result = (await stream.receive(1))[1]
        assert result.outputs[0].name == "sum"
        assert np.array_equal(floats(result), np.full(600_000, 599_999, np.float32))
        assert stream.batches[1].executed_items == 1
        assert stream.messages[-1].HasField("load")


async def test_bytes_that_are_no_message_end_the_stream_with_a_reason(repository: Path) -> None:
    async with serve(repository) as served:
        channel: Any = served.channel
        call = channel.stream_stream("/orchid.v1.Worker/Execute")()
        await call.write(b"\xff\xff")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call.read()
        assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert refused.value.details() == "the message is not a valid orchid.v1.ExecuteRequest"


async def test_every_element_type_comes_back_as_it_went(repository: Path) -> None:
    async with serve(repository, ("identity",)) as served:
        described = await served.stub.Describe(pb.DescribeRequest())
        (variant,) = described.models[0].variants
        item = pb.Item(item_id=1, budget_us=MINUTE_US)
        for spec in variant.inputs:
            tensor = item.tensors.add(name=spec.name, data_type=spec.data_type, shape=[3])
            if spec.data_type == common_pb2.DATA_TYPE_STRING:
                tensor.strings.extend([b"a", "größer".encode(), b""])
            else:
                name = common_pb2.DataType.Name(spec.data_type).removeprefix("DATA_TYPE_").lower()
                tensor.data = np.array([1, 0, 1]).astype(name).tobytes()
        stream = Stream(served)
        await stream.send(batch(1, item, model="identity", variant="identity"))
        result = (await stream.receive(1))[1]
        assert status(result) == "OK", result.message
        returned = {tensor.name.removeprefix("out_"): tensor for tensor in result.outputs}
        for sent in item.tensors:
            got = returned[sent.name.removeprefix("in_")]
            assert (got.data_type, got.shape[:], got.data) == (sent.data_type, [3], sent.data)
            assert got.strings[:] == sent.strings[:]
        await stream.finish()
