"""Generations through real processes: callers that cut their streams, and the command line."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest

from deploy.cluster import ClusterSpec, LocalCluster
from deploy.fleet_views import LaneView
from protos.orchid.v1 import common_pb2, inference_pb2, inference_pb2_grpc
from tests.integration.support import PATIENT, resident_mib, settled, wait_for
from tests.integration.test_command_line import orchid
from worker.models.synthetic_generator import build_tiny_generator

MODEL = "tiny-chat"
STREAMS, AT_ONCE = 2000, 40
GROWTH_MIB = 24


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """One decode worker."""
    root = tmp_path_factory.mktemp("generate")
    build_tiny_generator(root / "models", MODEL)
    spec = ClusterSpec(
        workers=1,
        decode_threads=1,
        directory=root / "cluster",
        listen="127.0.0.1:0",
        repository=root / "models",
        controlplane=PATIENT,
    )
    with LocalCluster(spec) as running:
        running.wait_ready(timeout_s=60)
        yield running


def request(prompt: str, tokens: int, **fields: str) -> inference_pb2.GenerateRequest:
    """A greedy generation that no busy machine refuses."""
    return inference_pb2.GenerateRequest(
        model=MODEL,
        text=prompt,
        limits=common_pb2.GenerationLimits(max_tokens=tokens, ignore_end=True),
        request_class=inference_pb2.RequestClass(tenant=fields.get("tenant", "")),
        first_token_target_ms=120_000,
        token_target_ms=60_000,
    )


async def told(stub: inference_pb2_grpc.InferenceAsyncStub, prompt: str, tokens: int) -> str:
    """A whole answer."""
    stream = stub.Generate(request(prompt, tokens), timeout=120)
    return "".join([event.delta.text async for event in stream])


async def cut(
    stub: inference_pb2_grpc.InferenceAsyncStub, number: int, reads: int, codes: Counter[str]
) -> None:
    """Opens a stream and cuts it after so many events."""
    prompt = "the one and the other " * (1 + number % 12)
    call = stub.Generate(request(prompt, 40, tenant=f"t{number % 3}"), timeout=120)
    try:
        for _ in range(reads):
            if await call.read() is grpc.aio.EOF:
                break
        call.cancel()
        codes[(await call.code()).name] += 1
    except asyncio.CancelledError:
        codes["CANCELLED"] += 1
    except grpc.aio.AioRpcError as error:
        codes[error.code().name] += 1


def lane(cluster: LocalCluster) -> LaneView:
    """What the decode worker holds, as last reported."""
    (generator,) = cluster.status().generators
    return generator.lanes[0]


async def test_streams_that_are_cut_leak_nothing_and_disturb_nobody(
    cluster: LocalCluster,
) -> None:
    draws, codes = np.random.default_rng(3), Counter[str]()
    names = ("controlplane", "decode-0")
    async with grpc.aio.insecure_channel(cluster.address) as channel:
        stub: inference_pb2_grpc.InferenceAsyncStub = inference_pb2_grpc.InferenceStub(channel)
        alone = await told(stub, "An undisturbed answer.", 200)
        before: dict[str, float] = {}
        for start in range(0, STREAMS, AT_ONCE):
            numbers = range(start, start + AT_ONCE)
            storm = [cut(stub, n, int(draws.integers(6)), codes) for n in numbers]
            if start % 400:
                await asyncio.gather(*storm)
                continue
            beside, *_ = await asyncio.gather(told(stub, "An undisturbed answer.", 200), *storm)
            assert beside == alone
            before = before or {name: resident_mib(cluster, name) for name in names}
        after = {name: resident_mib(cluster, name) for name in names}
    assert sum(codes.values()) == STREAMS and codes["CANCELLED"] > STREAMS // 2
    assert set(codes) <= {"CANCELLED", "OK"}, codes
    settled(cluster.address)

    def whole() -> bool:
        now = lane(cluster)
        busy = now.waiting + now.prefilling + now.decoding + now.open
        return not busy and now.free_blocks + now.evictable_blocks == now.total_blocks

    wait_for(whole, "every block is free")
    grown = {name: after[name] - before[name] for name in names}
    assert max(grown.values()) < GROWTH_MIB, (before, after)


def test_the_command_line_says_what_the_stub_says(cluster: LocalCluster, tmp_path: Path) -> None:
    patient = ("--first-token-target-ms", "60000", "--token-target-ms", "60000")
    target = (*patient, "--address", cluster.address)
    with grpc.insecure_channel(cluster.address) as channel:
        stub = inference_pb2_grpc.InferenceStub(channel)
        asked = inference_pb2.GenerateRequest(
            model=MODEL,
            text="the thing",
            limits=common_pb2.GenerationLimits(max_tokens=12),
            first_token_target_ms=60_000,
            token_target_ms=60_000,
        )
        text = "".join(event.delta.text for event in stub.Generate(asked, timeout=60))
    told = orchid("generate", MODEL, "the thing", "--max-tokens", "12", *target, cwd=tmp_path)
    assert told.returncode == 0, told.stderr
    assert told.stdout.rstrip("\n") == text.rstrip("\n") != ""
    assert f"{MODEL}-fp32 on decode-0" in told.stderr
    whole = orchid("generate", MODEL, "the thing", "--max-tokens", "12", "--json", *target,
                   cwd=tmp_path)  # fmt: skip
    document = json.loads(whole.stdout)
    assert document["text"] == text
    assert document["provenance"]["variant"] == f"{MODEL}-fp32"
    long = orchid("generate", MODEL, "x", "--max-tokens", "600", *target, cwd=tmp_path)
    assert long.returncode == 1
    assert "the context of model 'tiny-chat' is 512 tokens" in " ".join(long.stderr.split())
    status = orchid("status", "--address", cluster.address, cwd=tmp_path)
    assert f"model {MODEL} generates on 1 worker(s): ready" in status.stdout


def test_asking_a_generator_as_a_classifier_points_to_generate(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    asked = orchid("infer", MODEL, "x", "--address", cluster.address, cwd=tmp_path)
    assert asked.returncode == 1
    assert "orchid.v1.Inference/Generate" in " ".join((asked.stdout + asked.stderr).split())
