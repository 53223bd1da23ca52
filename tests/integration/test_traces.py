"""Traces through real processes: whole, accounted for, and without a word of content."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest

from deploy.ask import Question, ask
from deploy.cluster import ClusterSpec, LocalCluster
from deploy.generation import GenerationQuestion, Generator
from deploy.traces.client import ClientTrace
from deploy.traces.spans import Span
from deploy.traces.tree import Trace
from protos.orchid.v1 import common_pb2, inference_pb2, inference_pb2_grpc
from protos.tracing.export import Destinations, open_sink
from tests.integration.collector import Collector, collecting
from tests.integration.support import PATIENT, wait_for
from worker.models.synthetic import build_synthetic
from worker.models.synthetic_generator import build_tiny_generator

ENCODER, DECODER = "paced", "tiny-chat"
SECRET = "zebraquartz"
# Ids that no count, size or time of these tests is.
SECRET_IDS = (157, 163, 167, 173)
ENCODER_SPANS = (
    "orchid infer", "prepare", "Infer", "orchid.request", "orchid.receive", "orchid.preprocess",
    "orchid.admission", "orchid.dispatch", "orchid.respond", "worker.execute", "worker.queue",
    "worker.run", "worker.respond",
)  # fmt: skip
DECODER_SPANS = (
    "orchid generate", "Generate", "orchid.generate", "orchid.preprocess", "orchid.admission",
    "orchid.dispatch", "orchid.respond", "worker.generate", "worker.queue", "worker.prefill",
    "worker.decode", "worker.respond",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Traced:
    """A cluster of both lanes and the collector of all its spans."""

    cluster: LocalCluster
    collector: Collector
    directory: Path


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Traced]:
    """One encoder and one decode worker, everything that is asked for is recorded twice."""
    root = tmp_path_factory.mktemp("traced")
    build_synthetic(root / "models", ENCODER, busy={"tiny-a": 5000, "tiny-b": 1000})
    build_tiny_generator(root / "models", DECODER)
    with collecting() as collector:
        kept = str(root / "kept")
        telemetry = {"otlp_endpoint": collector.address, "directory": kept, "slow_ms": 60_000}
        spec = ClusterSpec(
            workers=1,
            decode_threads=1,
            directory=root / "cluster",
            listen="127.0.0.1:0",
            repository=root / "models",
            controlplane={**PATIENT, "telemetry": telemetry, "log_level": "DEBUG"},
            worker={
                "otlp_endpoint": f"http://{collector.address}",
                "trace_directory": kept,
                "log_level": "debug",
            },
        )
        with LocalCluster(spec) as running:
            running.wait_ready(timeout_s=60)
            yield Traced(running, collector, root)


def collected(client: ClientTrace, traced: Traced, names: tuple[str, ...]) -> Trace:
    """The whole trace of a command, the command's own spans with it, from the collector."""
    sink = open_sink(
        Destinations(traced.collector.address),
        process="client",
        resource={"service.name": "orchid-client"},
        scope="test",
        wall_offset_ns=time.time_ns() - time.monotonic_ns(),
    )
    assert sink is not None
    sink.emit(client.records())
    sink.close()
    return traced.collector.trace(client.id, *names)


def infer(traced: Traced, text: str = "the movie was good") -> Trace:
    client = ClientTrace("orchid infer", time.monotonic_ns)
    (reply,) = ask(traced.cluster.address, Question(ENCODER, tenant="acme"), [text], client)
    assert not reply.error, reply.error
    return collected(client, traced, ENCODER_SPANS)


def generate(traced: Traced, text: str = "the one and the other") -> Trace:
    client = ClientTrace("orchid generate", time.monotonic_ns)
    question = GenerationQuestion(
        DECODER,
        text=text,
        max_tokens=60,
        first_token_target_ms=60_000,
        token_target_ms=60_000,
    )
    with Generator(traced.cluster.address, client) as generator:
        generator.generate(question, lambda piece: None)
    return collected(client, traced, DECODER_SPANS)


def until_accounted_for(ask: Callable[[], Trace]) -> list[Trace]:
    """Traces, the last of them accounted for: between two spans a busy machine may stand still."""
    traces: list[Trace] = []
    while not traces or (traces[-1].coverage().share < 0.95 and len(traces) < 20):
        traces.append(ask())
    return traces


def processes(trace: Trace) -> set[str]:
    return {span.process for span in trace.spans}


def only(trace: Trace, name: str) -> Span:
    (span,) = [span for span in trace.spans if span.name == name]
    return span


def test_a_request_is_accounted_for_across_three_processes(traced: Traced) -> None:
    traces = until_accounted_for(lambda: infer(traced))
    for trace in traces:
        assert processes(trace) == {"client", "controlplane", "worker-0"}
        names = [row.span.name for row in trace.rows()]
        assert names[:4] == ["orchid infer", "prepare", "Infer", "orchid.request"]
        assert not trace.fault
        dispatch, execute = only(trace, "orchid.dispatch"), only(trace, "worker.execute")
        assert execute.parent_id == dispatch.span_id
        assert dispatch.attributes["orchid.batch_id"] == execute.attributes["orchid.batch_id"]
        assert only(trace, "orchid.request").attributes["orchid.tenant"] == "acme"
        assert only(trace, "worker.run").attributes["orchid.batch_items"] == 1
    assert traces[-1].coverage().share >= 0.95


def test_a_generation_is_accounted_for_across_three_processes(traced: Traced) -> None:
    traces = until_accounted_for(lambda: generate(traced))
    for trace in traces:
        assert processes(trace) == {"client", "controlplane", "decode-0"}
        root = only(trace, "orchid.generate")
        tokens = root.attributes["orchid.generated_tokens"]
        assert isinstance(tokens, int) and tokens > 32
        assert [event.name for event in root.events] == ["first_token"]
        decode = only(trace, "worker.decode")
        assert decode.attributes["orchid.steps"] == tokens - 1
        assert 16 <= len(decode.events) <= 32
    assert traces[-1].coverage().share >= 0.95


def test_the_files_hold_what_the_collector_got(traced: Traced) -> None:
    trace = infer(traced)
    kept = traced.directory / "kept"
    for process, name in (("controlplane", "orchid.request"), ("worker-0", "worker.run")):
        path, wanted = kept / f"{process}.jsonl", only(trace, name).span_id
        # Each process writes from a thread of its own.
        wait_for(partial(is_in, path, wanted), f"{name} in {path.name}")


def is_in(path: Path, span_id: str) -> bool:
    return span_id in path.read_text()


async def test_requests_of_one_stream_are_one_trace(traced: Traced) -> None:
    client = ClientTrace("stream", time.monotonic_ns)
    with client.call("StreamInfer") as call:
        async with grpc.aio.insecure_channel(traced.cluster.address) as channel:
            stub: inference_pb2_grpc.InferenceAsyncStub = inference_pb2_grpc.InferenceStub(channel)
            stream = stub.StreamInfer(metadata=call.metadata, timeout=60)
            for number in range(8):
                words = inference_pb2.TextInput(texts=["good"])
                await stream.write(
                    inference_pb2.InferRequest(request_id=str(number), model=ENCODER, text=words)
                )
            await stream.done_writing()
            assert len([answer async for answer in stream]) == 8
    trace = collected(client, traced, ("orchid.stream", "orchid.request", "worker.run"))
    stream_span = only(trace, "orchid.stream")

    def complete() -> Trace:
        return traced.collector.trace(client.id, "orchid.stream")

    requests = [span for span in complete().spans if span.name == "orchid.request"]
    assert len(requests) == 8 and {span.parent_id for span in requests} == {stream_span.span_id}


def test_no_content_is_in_any_span_or_log(traced: Traced) -> None:
    marker = f"{SECRET} the one and the other"
    words = infer(traced, text=marker), generate(traced, text=marker)
    client = ClientTrace("secrets", time.monotonic_ns)
    said: list[str] = []
    with grpc.insecure_channel(traced.cluster.address) as channel, client.call("Secrets") as call:
        metadata = (*call.metadata, ("tracestate", f"{SECRET}=1"), ("x-note", SECRET))
        stub = inference_pb2_grpc.InferenceStub(channel)
        tokens = inference_pb2.PromptTokens(ids=SECRET_IDS)
        request = inference_pb2.GenerateRequest(
            request_id=SECRET,
            model=DECODER,
            tokens=tokens,
            limits=common_pb2.GenerationLimits(max_tokens=40, stop=[SECRET], logprobs=2),
            first_token_target_ms=60_000,
            token_target_ms=60_000,
        )
        said += [e.delta.text for e in stub.Generate(request, metadata=metadata, timeout=60)]
        wrong = (
            inference_pb2.GenerateRequest(model=SECRET, text=marker),
            inference_pb2.GenerateRequest(
                model=DECODER,
                text=marker,
                request_class=inference_pb2.RequestClass(request_class="none", variant=SECRET),
            ),
        )
        for each in wrong:
            with pytest.raises(grpc.RpcError):
                list(stub.Generate(each, metadata=metadata, timeout=60))
        text = inference_pb2.TextInput(texts=[marker])
        for bad in (
            inference_pb2.InferRequest(request_id=SECRET, model=SECRET, text=text),
            inference_pb2.InferRequest(model=ENCODER, text=text, tokenizer=SECRET),
        ):
            with pytest.raises(grpc.RpcError):
                stub.Infer(bad, metadata=metadata, timeout=60)
        fine = inference_pb2.InferRequest(request_id=SECRET, model=ENCODER, text=text)
        outputs = stub.Infer(fine, metadata=metadata, timeout=60).outputs[0].data
        method: Any = channel.unary_unary(f"/orchid.v1.Inference/{SECRET}")
        with pytest.raises(grpc.RpcError):
            method(b"", metadata=metadata)
    trace = collected(client, traced, ("orchid.call", "orchid.generate", "orchid.request"))
    assert {span.fault for span in trace.spans} >= {"not-found", "invalid", "unimplemented"}
    answer = "".join(said)
    assert len(answer.encode()) > 40
    exported = b"".join(traced.collector.raw)
    files = [
        *(traced.directory / "kept").rglob("*"),
        *(traced.directory / "cluster").rglob("*.log"),
    ]
    everything = exported + b"".join(path.read_bytes() for path in files if path.is_file())
    assert b"worker.run" in everything and len(files) > 5
    for secret in (SECRET, marker, answer[:12], answer[-12:]):
        assert secret.encode() not in everything
    assert len(outputs) >= 8 and outputs not in everything
    ids = re.compile(rb"\D+".join(str(number).encode() for number in SECRET_IDS))
    assert not ids.search(everything)
    assert bytes(SECRET_IDS) not in everything
    # What is said of a span is a word, a number or a name that the deployment gave.
    for span in [*trace.spans, *words[0].spans, *words[1].spans]:
        for key, value in span.attributes.items():
            assert key.startswith(("orchid.", "rpc.", "http.")), key
            assert len(str(value)) <= 80
