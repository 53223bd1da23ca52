"""Traces of calls at every door: joined to their callers, never split, ended by every end."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind

from controlplane.config import ControlPlaneConfig
from controlplane.errors import Refused
from protos.inference import oip_pb2
from protos.orchid.v1 import inference_pb2, inference_pb2_grpc
from tests.contract.controlplane.decode_worker import (
    DecodeWorker,
    ask,
    chat,
    endless,
    full,
    refusal,
    rest,
    writers,
)
from tests.contract.controlplane.fake_worker import until
from tests.contract.controlplane.front_door import MODEL, Door, front_door
from tests.contract.controlplane.http_door import web_door, web_writers
from tests.contract.controlplane.infer_bodies import INFER
from tests.contract.controlplane.infer_bodies import body as infer_body
from tests.contract.controlplane.infer_bodies import text as infer_text
from tests.contract.controlplane.oip_client import stub, text_request
from tests.kept_spans import (
    ASKED,
    CALLER,
    SAMPLED,
    TRACE,
    UNSAMPLED,
    KeptSpans,
    id_of,
    parent_of,
    said,
    trace_of,
)


async def recorded(kept: KeptSpans, name: str, count: int = 1) -> list[ReadableSpan]:
    """The spans of a name once there are so many: calls end after their callers know."""
    await until(lambda: len(kept.named(name)) >= count, f"{count} spans {name}")
    found = kept.named(name)
    assert len(found) == count
    return found


def native(door: Door) -> inference_pb2_grpc.InferenceAsyncStub:
    return inference_pb2_grpc.InferenceStub(door.channel)


def infer(text: str = "good", **fields: Any) -> inference_pb2.InferRequest:
    words = inference_pb2.TextInput(texts=[text])
    return inference_pb2.InferRequest(**{"model": MODEL, "text": words, **fields})


async def test_unary_calls_of_both_protocols_join_their_caller() -> None:
    kept = KeptSpans()
    async with front_door(telemetry=kept.telemetry()) as door:
        call = native(door).Infer(infer(), metadata=ASKED)
        await call
        assert dict(await call.trailing_metadata())["orchid-trace-id"] == TRACE
        await native(door).Infer(infer())
        await stub(door).ModelInfer(text_request("good"), metadata=ASKED)
        await stub(door).ModelInfer(text_request("good"), metadata=(("traceparent", UNSAMPLED),))
        first, second = await recorded(kept, "orchid.request", 2)
        traces = [request.trace for request in door.queue.requests]
        assert [trace is not None for trace in traces] == [True, False, True, False]
    assert {trace_of(span) for span in (first, second)} == {TRACE}
    assert {parent_of(span) for span in (first, second)} == {CALLER}
    assert first.kind is SpanKind.SERVER and first.status.is_unset
    assert said(first) == {
        "rpc.system": "grpc",
        "rpc.service": "orchid.v1.Inference",
        "rpc.method": "Infer",
        "rpc.grpc.status_code": 0,
    }
    assert said(second)["rpc.method"] == "ModelInfer"


@pytest.mark.parametrize(
    ("request_", "word", "code"),
    [
        (infer(model="nowhere"), "not-found", grpc.StatusCode.NOT_FOUND),
        (infer(tokenizer="words"), "invalid", grpc.StatusCode.INVALID_ARGUMENT),
        (infer(deadline_ms=-1), "too-late", grpc.StatusCode.DEADLINE_EXCEEDED),
    ],
)
async def test_calls_that_never_reach_the_queue_end_their_span(
    request_: inference_pb2.InferRequest, word: str, code: grpc.StatusCode
) -> None:
    kept = KeptSpans()
    async with front_door(telemetry=kept.telemetry()) as door:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await native(door).Infer(request_, metadata=ASKED)
        assert caught.value.code() is code
        trailers = dict(caught.value.trailing_metadata() or ())
        assert trailers["orchid-trace-id"] == TRACE
        (span,) = await recorded(kept, "orchid.request")
    assert span.status.description == word
    assert said(span)["rpc.grpc.status_code"] == code.value[0]
    assert "nowhere" not in str(said(span))


async def test_retry_guidance_stays_beside_the_trace() -> None:
    kept = KeptSpans()
    async with front_door(telemetry=kept.telemetry()) as door:
        door.queue.refuse = Refused("full", 70)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub(door).ModelInfer(text_request("good"), metadata=ASKED)
        trailers = dict(caught.value.trailing_metadata() or ())
    assert trailers["retry-after-ms"] == "70" and trailers["orchid-trace-id"] == TRACE


async def test_unknown_methods_and_messages_that_are_too_large_end_their_span() -> None:
    kept = KeptSpans()
    config = ControlPlaneConfig(listen="127.0.0.1:0", max_message_bytes=2048)
    async with front_door(config=config, telemetry=kept.telemetry()) as door:
        for path in ("/orchid.v1.Inference/Nothing", "/no.Service/Method"):
            method: Any = door.channel.unary_unary(path)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await method(b"", metadata=ASKED)
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
        unknown = await recorded(kept, "orchid.call", 2)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await native(door).Infer(infer("x" * 5000), metadata=ASKED)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        (large,) = await recorded(kept, "orchid.request")
    assert {span.status.description for span in unknown} == {"unimplemented"}
    assert "Nothing" not in str([said(span) for span in unknown])
    assert large.status.description == "not-received"


async def test_a_cancelled_call_ends_its_span() -> None:
    kept = KeptSpans()
    async with front_door(telemetry=kept.telemetry()) as door:
        door.queue.hold = True
        call = native(door).Infer(infer(), metadata=ASKED)
        waiting = asyncio.ensure_future(call)
        await door.queue.until(lambda: bool(door.queue.pending))
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        (span,) = await recorded(kept, "orchid.request")
    assert span.status.description == "cancelled"
    assert said(span)["rpc.grpc.status_code"] == grpc.StatusCode.CANCELLED.value[0]


async def test_every_message_of_a_stream_is_in_the_streams_trace() -> None:
    kept = KeptSpans()
    async with front_door(telemetry=kept.telemetry()) as door:
        stream = native(door).StreamInfer(metadata=ASKED)
        for number in range(3):
            await stream.write(infer(request_id=str(number)))
        await stream.write(infer(request_id="bad", model="nowhere"))
        await stream.done_writing()
        answers = [answer async for answer in stream]
        assert len(answers) == 4
        oip = stub(door).ModelStreamInfer(metadata=ASKED)
        await oip.write(text_request("good"))
        await oip.done_writing()
        assert len([answer async for answer in oip]) == 1
        roots = await recorded(kept, "orchid.stream", 2)
        messages = await recorded(kept, "orchid.request", 5)
    assert {trace_of(span) for span in (*roots, *messages)} == {TRACE}
    assert {parent_of(span) for span in roots} == {CALLER}
    assert {parent_of(span) for span in messages} == {id_of(span) for span in roots}
    assert sorted(span.status.description or "" for span in messages) == [*[""] * 4, "not-found"]
    assert all(span.kind is SpanKind.INTERNAL for span in messages)


async def test_a_stream_that_is_cut_leaves_no_open_span() -> None:
    kept = KeptSpans()
    async with front_door(telemetry=kept.telemetry()) as door:
        door.queue.hold = True
        stream = native(door).StreamInfer(metadata=ASKED)
        await stream.write(infer(request_id="1"))
        await stream.write(infer(request_id="2"))
        await door.queue.until(lambda: len(door.queue.pending) == 2)
        stream.cancel()
        messages = await recorded(kept, "orchid.request", 2)
        (root,) = await recorded(kept, "orchid.stream")
    assert {span.status.description for span in (root, *messages)} == {"cancelled"}


async def test_a_stream_without_a_context_is_sampled_message_by_message() -> None:
    kept = KeptSpans()
    async with front_door(telemetry=kept.telemetry(sample_ratio=1.0)) as door:
        for metadata in ((), (("traceparent", UNSAMPLED),)):
            stream = native(door).StreamInfer(metadata=metadata)
            for number in range(2):
                await stream.write(infer(request_id=str(number)))
            await stream.done_writing()
            assert len([answer async for answer in stream]) == 2
        messages = await recorded(kept, "orchid.request", 2)
    assert len({trace_of(span) for span in messages}) == 2
    assert {parent_of(span) for span in messages} == {""}
    assert kept.named("orchid.stream") == []


async def test_other_calls_are_recorded_when_their_caller_asks() -> None:
    kept = KeptSpans()
    async with front_door(telemetry=kept.telemetry(sample_ratio=1.0)) as door:
        await stub(door).ServerLive(oip_pb2.ServerLiveRequest(), metadata=ASKED)
        await stub(door).ServerLive(oip_pb2.ServerLiveRequest())
        (span,) = await recorded(kept, "orchid.call")
    assert said(span)["rpc.method"] == "ServerLive"


async def test_embeddings_over_http_join_their_caller() -> None:
    kept = KeptSpans()
    async with web_door(telemetry=kept.telemetry()) as door:
        body = b'{"model": "vectors", "input": "bad"}'
        answer = await door.post("/v1/embeddings", body, traceparent=SAMPLED)
        assert answer.headers["x-orchid-trace-id"] == TRACE
        plain = await door.post("/v1/embeddings", body)
        assert "x-orchid-trace-id" not in plain.headers
        wrong = await door.post("/v1/embeddings", b"{}", traceparent=SAMPLED)
        assert wrong.headers["x-orchid-trace-id"] == TRACE
        nowhere = await door.post("/v1/nowhere", b"", traceparent=SAMPLED)
        assert nowhere.status_code == 404
        good, bad = await recorded(kept, "orchid.request", 2)
        (lost,) = await recorded(kept, "orchid.call")
    assert trace_of(good) == TRACE and parent_of(good) == CALLER
    assert said(good)["http.route"] == "/v1/embeddings"
    assert said(good)["http.response.status_code"] == 200
    assert bad.status.description == "invalid" and said(bad)["http.response.status_code"] == 400
    assert lost.status.description == "not-found" and "nowhere" not in str(said(lost))


async def test_inference_over_http_joins_its_caller() -> None:
    kept = KeptSpans()
    async with web_door(telemetry=kept.telemetry()) as door:
        answer = await door.post(INFER, infer_body(infer_text("good")), traceparent=SAMPLED)
        assert answer.headers["x-orchid-trace-id"] == TRACE
        await door.post(INFER, infer_body(infer_text("good")))
        (span,) = await recorded(kept, "orchid.request")
    assert trace_of(span) == TRACE and parent_of(span) == CALLER
    assert said(span)["http.route"] == "/v2/models/{model}/infer"


async def test_a_recorded_generation_has_a_tree_with_shapes_and_no_words() -> None:
    kept = KeptSpans()
    worker = DecodeWorker()
    async with writers(worker, telemetry=kept.telemetry()) as house:
        request = ask(chat=chat(("user", "once upon a time")))
        await rest(house.inference.Generate(request, metadata=ASKED))
        await house.at_rest()
        await rest(house.inference.Generate(ask()))
        (root,) = await recorded(kept, "orchid.generate")
    dispatch = kept.one("orchid.dispatch")
    assert (trace_of(root), parent_of(root)) == (TRACE, CALLER)
    names = [span.name for span in kept.all if parent_of(span) == id_of(root)]
    assert names == [
        "orchid.receive",
        "orchid.preprocess",
        "orchid.admission",
        "orchid.dispatch",
        "orchid.respond",
    ]
    joined, unsampled = (call.traceparent for call in worker.calls)
    assert joined == f"00-{TRACE}-{id_of(dispatch)}-01" and unsampled == ""
    attributes = said(root)
    assert attributes["orchid.variant"] == "writer-q4" and attributes["orchid.worker_id"] == "d1"
    assert attributes["orchid.input_tokens"] == 6 and attributes["orchid.generated_tokens"] == 6
    assert attributes["orchid.finish"] == "length" and attributes["orchid.sends"] == 1
    assert [event.name for event in root.events] == ["first_token"]
    decided = said(kept.one("orchid.admission"))
    assert decided["orchid.admitted"] is True and decided["orchid.reason"] == "best-in-target"
    assert not any("once" in str(said(span)) for span in kept.all)


async def test_a_slow_generation_that_nobody_recorded_has_what_its_worker_told() -> None:
    kept = KeptSpans()
    telemetry = kept.telemetry(slow_per_s=10.0)
    telemetry.slow_ns = 0
    async with writers(DecodeWorker(), telemetry=telemetry) as house:
        await rest(house.inference.Generate(ask()))
        (root,) = await recorded(kept, "orchid.generate")
    dispatch, read, wrote = (
        kept.one(f"orchid.{name}") for name in ("dispatch", "prefill", "decode")
    )
    assert said(root)["orchid.sampled_by"] == "tail"
    assert parent_of(read) == parent_of(wrote) == id_of(dispatch)
    assert read.end_time == wrote.start_time and wrote.end_time == dispatch.end_time


async def test_a_refused_generation_says_so_on_its_spans() -> None:
    kept = KeptSpans()
    async with writers(DecodeWorker(script=full), telemetry=kept.telemetry()) as house:
        error, _ = await refusal(house.inference.Generate(ask(), metadata=ASKED))
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        (root,) = await recorded(kept, "orchid.generate")
    assert root.status.description == "refused"
    assert kept.one("orchid.dispatch").status.description == "refused"


async def test_a_generation_that_is_cut_is_cancelled_on_its_spans() -> None:
    kept = KeptSpans()
    async with writers(DecodeWorker(script=endless), telemetry=kept.telemetry()) as house:
        call = house.inference.Generate(ask(), metadata=ASKED)
        await call.read()
        await call.read()
        call.cancel()
        (root,) = await recorded(kept, "orchid.generate")
        await house.at_rest()
    assert root.status.description == "cancelled"
    assert said(root)["rpc.grpc.status_code"] == grpc.StatusCode.CANCELLED.value[0]
    assert [event.name for event in root.events][-1] == "cancelled"


async def test_prompts_of_one_http_call_are_spans_of_one_trace() -> None:
    kept = KeptSpans()
    worker = DecodeWorker()
    telemetry = kept.telemetry()
    async with web_writers(worker, telemetry=telemetry) as web:
        body = b'{"model": "writer", "prompt": ["once", "upon a"], "max_tokens": 3}'
        answer = await web.post("/v1/completions", body, traceparent=SAMPLED)
        assert answer.status_code == 200, answer.text
        spans = await recorded(kept, "orchid.generate", 3)
    root = next(span for span in spans if parent_of(span) == CALLER)
    inner = [span for span in spans if span is not root]
    assert {trace_of(span) for span in kept.all} == {TRACE}
    assert {parent_of(span) for span in inner} == {id_of(root)}
    assert len({call.traceparent for call in worker.calls}) == 2
    assert said(root)["http.route"] == "/v1/completions"


async def test_without_telemetry_a_sampled_context_is_passed_on() -> None:
    worker = DecodeWorker()
    async with writers(worker) as house:
        await rest(house.inference.Generate(ask(), metadata=ASKED))
        await rest(house.inference.Generate(ask(), metadata=(("traceparent", UNSAMPLED),)))
    assert [call.traceparent for call in worker.calls] == [SAMPLED, ""]
