"""HTTP clients and the gRPC stubs against real processes of both lanes: the same answers."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx2
import numpy as np
import openai
import psutil
import pytest

from deploy.cluster import ClusterSpec, LocalCluster
from protos.orchid.v1 import common_pb2, inference_pb2, inference_pb2_grpc
from tests.integration.support import settled
from tests.integration.test_command_line import orchid
from tests.unit.worker.models.test_local import write_checkpoint
from worker.models.local import CheckpointOptions, build_checkpoint
from worker.models.progress import Silent
from worker.models.synthetic_generator import build_tiny_generator

WRITER, VECTORS = "tiny-chat", "tiny-vectors"
# A machine that many jobs share may be slow to a first token.
PATIENT: dict[str, Any] = {"first_token_target_ms": 60_000, "token_target_ms": 60_000}
PROMPTS = ("the inner thing", "Ünïcode € und 漢字, then 😀", "x", "a longer one " * 12)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """One encoder worker with an embedder, one decode worker, and HTTP."""
    root = tmp_path_factory.mktemp("openai")
    build_tiny_generator(root / "models")
    source = write_checkpoint(root / "source", "bert", head="none")
    build_checkpoint(source, root / "models", CheckpointOptions(VECTORS), Silent())
    spec = ClusterSpec(
        workers=1,
        directory=root / "cluster",
        listen="127.0.0.1:0",
        http="127.0.0.1:0",
        repository=root / "models",
        decode_threads=1,
        controlplane={"report_interval_ms": 3000},
    )
    with LocalCluster(spec) as running:
        running.wait_ready(timeout_s=90)
        yield running


@pytest.fixture
def sdk(cluster: LocalCluster) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"http://{cluster.http_address}/v1", api_key="unused", max_retries=0, timeout=60
    ) as client:
        yield client


@pytest.fixture
def stub(cluster: LocalCluster) -> Iterator[inference_pb2_grpc.InferenceStub]:
    with grpc.insecure_channel(cluster.address) as channel:
        yield inference_pb2_grpc.InferenceStub(channel)


def native(stub: inference_pb2_grpc.InferenceStub, **fields: Any) -> str:
    """The text of a greedy generation by gRPC."""
    request = inference_pb2.GenerateRequest(
        model=WRITER,
        limits=common_pb2.GenerationLimits(max_tokens=24),
        **PATIENT,
        **fields,
    )
    return "".join(event.delta.text for event in stub.Generate(request, timeout=60))


@pytest.mark.parametrize("prompt", PROMPTS)
def test_both_apis_say_the_same(
    sdk: openai.OpenAI, stub: inference_pb2_grpc.InferenceStub, prompt: str
) -> None:
    greedy: dict[str, Any] = {
        "model": WRITER,
        "max_tokens": 24,
        "temperature": 0,
        "extra_body": PATIENT,
    }
    expected = native(stub, text=prompt)
    assert expected
    whole = sdk.completions.create(prompt=prompt, **greedy)
    assert whole.choices[0].text == expected
    pieces = sdk.completions.create(prompt=prompt, stream=True, **greedy)
    assert "".join(piece.choices[0].text for piece in pieces) == expected

    turn = inference_pb2.ChatMessage(role="user", content=prompt)
    answered = native(stub, chat=inference_pb2.Chat(messages=[turn]))
    messages: list[Any] = [{"role": "user", "content": prompt}]
    chat = sdk.chat.completions.create(messages=messages, **greedy)
    assert chat.choices[0].message.content == answered
    stream = sdk.chat.completions.create(messages=messages, stream=True, **greedy)
    told = "".join(piece.choices[0].delta.content or "" for piece in stream)
    assert told == answered
    assert chat.usage is not None
    assert chat.usage.completion_tokens <= 24


def test_a_seed_draws_the_same_answers_and_different_ones_of_one_prompt(
    sdk: openai.OpenAI,
) -> None:
    def draw(seed: int) -> list[str]:
        made = sdk.completions.create(
            model=WRITER, prompt="the", n=3, seed=seed, max_tokens=12, extra_body=PATIENT
        )
        return [choice.text for choice in made.choices]

    first = draw(5)
    assert draw(5) == first
    assert draw(6) != first
    assert len(set(first)) > 1


def test_a_stop_string_ends_the_answer_before_it(sdk: openai.OpenAI) -> None:
    def create(stop: str | None) -> str:
        made = sdk.completions.create(
            model=WRITER,
            prompt="the inner",
            temperature=0,
            max_tokens=24,
            stop=stop,
            extra_body=PATIENT,
        )
        return made.choices[0].text

    text = create(None)
    stop = text[4:6]
    assert create(stop) == text[: text.index(stop)]


def test_log_probabilities_are_those_of_the_text(sdk: openai.OpenAI) -> None:
    made = sdk.chat.completions.create(
        model=WRITER,
        messages=[{"role": "user", "content": "the"}],
        temperature=0,
        max_tokens=8,
        logprobs=True,
        top_logprobs=3,
        extra_body=PATIENT,
    )
    told = made.choices[0].logprobs
    assert told is not None
    assert told.content is not None
    assert len(told.content) == 8
    for token in told.content:
        # Greedy: the token that was taken leads its alternatives.
        assert token.logprob == pytest.approx(token.top_logprobs[0].logprob, abs=1e-6)
        assert len(token.top_logprobs) == 3


def test_embeddings_are_those_of_the_encoder_lane(
    sdk: openai.OpenAI, stub: inference_pb2_grpc.InferenceStub
) -> None:
    texts = ["a good film", "bad", "a superb and moving story"]
    made = sdk.embeddings.create(model=VECTORS, input=texts)
    plain = sdk.embeddings.create(model=VECTORS, input=texts[1], encoding_format="float")
    request = inference_pb2.InferRequest(
        model=VECTORS, text=inference_pb2.TextInput(texts=texts), deadline_ms=60_000
    )
    (tensor,) = stub.Infer(request, timeout=60).outputs
    rows = np.frombuffer(tensor.data, "<f4").reshape(tensor.shape)
    got = np.array([each.embedding for each in made.data], np.float32)
    assert np.array_equal(got, rows)
    np.testing.assert_allclose(np.linalg.norm(got, axis=1), 1, rtol=1e-5)
    np.testing.assert_allclose(plain.data[0].embedding, rows[1], atol=1e-6)


def test_inference_over_http_is_that_of_grpc(
    cluster: LocalCluster, stub: inference_pb2_grpc.InferenceStub
) -> None:
    texts = ["a good film", "bad", "a superb and moving story"]
    text = {"name": "text", "datatype": "BYTES", "shape": [3, 1], "data": [[t] for t in texts]}
    sent = {"inputs": [text], "parameters": {"deadline_ms": 60_000}}
    path = f"/v2/models/{VECTORS}"
    with httpx2.Client(base_url=f"http://{cluster.http_address}", timeout=60) as client:
        described = client.get(path).json()
        answer = client.post(f"{path}/infer", json=sent).json()
        index = client.post("/v2/repository/index").json()
    request = inference_pb2.InferRequest(
        model=VECTORS, text=inference_pb2.TextInput(texts=texts), deadline_ms=60_000
    )
    response = stub.Infer(request, timeout=60)
    rows = np.frombuffer(response.outputs[0].data, "<f4").reshape(response.outputs[0].shape)
    (output,) = answer["outputs"]
    assert output["name"] == described["outputs"][0]["name"]
    got = np.array(output["data"], np.float32).reshape(output["shape"])
    assert np.array_equal(got, rows)
    assert answer["parameters"]["variant"] == response.provenance.variant
    assert {each["name"]: each["state"] for each in index} == {VECTORS: "READY", WRITER: "READY"}


def test_a_prompt_beyond_the_context_is_refused_with_the_numbers(sdk: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="512") as told:
        sdk.completions.create(model=WRITER, prompt="x y " * 400, extra_body=PATIENT)
    assert told.value.code == "context_length_exceeded"


async def test_streams_cut_at_any_moment_leave_nothing_behind(cluster: LocalCluster) -> None:
    random = np.random.default_rng(3)

    async def cut(client: openai.AsyncOpenAI, after: int) -> str:
        try:
            stream = await client.completions.create(
                model=WRITER,
                prompt="the inner thing",
                max_tokens=400,
                temperature=0,
                stream=True,
                extra_body={**PATIENT, "ignore_eos": True},
            )
        except openai.RateLimitError:
            return "refused"
        async with stream:
            for _ in range(after):
                if await anext(stream, None) is None:
                    return "ended"
        return "cut"

    whole = openai.AsyncOpenAI(
        base_url=f"http://{cluster.http_address}/v1", api_key="unused", max_retries=0, timeout=60
    )
    async with whole:
        # An event tells several tokens of the 400 where they come faster than they are asked for.
        ends = await asyncio.gather(
            *(cut(whole, int(after)) for after in random.integers(0, 8, 100))
        )
    assert ends.count("cut") > 50, Counter(ends)
    settled(cluster.address)


def test_the_port_outlives_the_control_plane(cluster: LocalCluster, sdk: openai.OpenAI) -> None:
    address = cluster.http_address
    pid = cluster.pid("controlplane")
    cluster.restart_controlplane()
    assert not psutil.pid_exists(pid)
    assert cluster.http_address == address
    cluster.wait_ready(timeout_s=60)
    assert {model.id for model in sdk.models.list()} == {WRITER, VECTORS}


def test_up_prints_where_http_is_served(tmp_path: Path, repository: Path) -> None:
    up = orchid(
        "up", "--workers", "1", "--detach", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0",
        "--repository", str(repository), cwd=tmp_path,
    )  # fmt: skip
    try:
        assert up.returncode == 0, up.stdout + up.stderr
        base = up.stdout.partition("http://")[2].partition("/v1")[0]
        with openai.OpenAI(base_url=f"http://{base}/v1", api_key="unused") as client:
            assert {model.id for model in client.models.list()} == {"tiny", "paced", "heavy"}
    finally:
        assert orchid("down", cwd=tmp_path).returncode == 0
