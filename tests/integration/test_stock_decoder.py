"""An exported decoder from its folder to a stream of text: imported, served, asked as any other."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from deploy.cluster import ClusterSpec, LocalCluster
from protos.orchid.v1 import common_pb2, inference_pb2, inference_pb2_grpc
from tests.contract.worker.generating import CONTEXT, MODEL, TOKENIZER, Plain, text_of
from tests.integration.support import PATIENT, settled
from tests.integration.test_command_line import orchid
from worker.models.synthetic_generator import write_tiny_export

PROMPTS = ("the inner thing", "a longer one " * 12, "x", "What is the weather like?")
TOKENS = 32


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the command line makes of an export."""
    root = tmp_path_factory.mktemp("stock")
    write_tiny_export(root / MODEL, "gpt2", context=CONTEXT)
    target = ("--repository", str(root / "models"))
    imported = orchid("models", "import", MODEL, *target, cwd=root)
    assert imported.returncode == 0, imported.stdout + imported.stderr
    assert "dense" in imported.stdout
    return root / "models"


@pytest.fixture(scope="module")
def cluster(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """One decode worker on that."""
    spec = ClusterSpec(
        workers=0,
        decode_threads=1,
        directory=tmp_path_factory.mktemp("cluster"),
        listen="127.0.0.1:0",
        repository=repository,
        decode={"warm_budget_ms": 1},
        controlplane=PATIENT,
    )
    with LocalCluster(spec) as running:
        running.wait_ready(timeout_s=60)
        yield running


def request(prompt: str) -> inference_pb2.GenerateRequest:
    """A greedy generation that no busy machine refuses."""
    return inference_pb2.GenerateRequest(
        model=MODEL,
        text=prompt,
        limits=common_pb2.GenerationLimits(max_tokens=TOKENS, ignore_end=True),
        first_token_target_ms=120_000,
        token_target_ms=60_000,
    )


async def test_streams_of_any_company_are_those_of_a_plain_loop(
    cluster: LocalCluster, repository: Path
) -> None:
    async with grpc.aio.insecure_channel(cluster.address) as channel:
        stub: inference_pb2_grpc.InferenceAsyncStub = inference_pb2_grpc.InferenceStub(channel)

        async def told(prompt: str) -> tuple[str, int]:
            deltas = [
                event.delta
                async for event in stub.Generate(request(prompt), timeout=120)
                if event.HasField("delta")
            ]
            return "".join(delta.text for delta in deltas), len(deltas)

        together = await asyncio.gather(*(told(prompt) for prompt in PROMPTS * 2))
    plain = Plain(repository, MODEL)
    for prompt, (text, pieces) in zip(PROMPTS * 2, together, strict=True):
        assert text == text_of(plain.tokens(TOKENIZER.encode(prompt).ids, TOKENS, ends=()))
        # Streamed as it is made, not told at the end.
        assert pieces > 1
    settled(cluster.address)


def test_a_chat_with_it_uses_the_template_of_the_export(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    patient = ("--first-token-target-ms", "60000", "--token-target-ms", "60000")
    asked = ("generate", MODEL, "How are you?", "--chat", "--max-tokens", "8", *patient)
    told = orchid(*asked, "--address", cluster.address, cwd=tmp_path)
    assert told.returncode == 0, told.stdout + told.stderr
    assert told.stdout.strip()
