"""Decode workers as processes: alone with stock tools, and beside encoder workers in a cluster."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from deploy.cluster import ClusterSpec, LocalCluster
from deploy.fleet import load_model, unload_model
from deploy.restart import RestartPolicy
from protos.orchid.v1 import common_pb2, inference_pb2, inference_pb2_grpc, worker_pb2
from protos.orchid.v1.worker_pb2_grpc import WorkerStub
from tests.integration.support import PATIENT, settled, wait_for
from worker.models.synthetic import build_synthetic
from worker.models.synthetic_generator import build_tiny_generator, tiny_generator_tokenizer

PROMPT = tiny_generator_tokenizer().encode("What is the weather like?").ids
LIMITS = common_pb2.GenerationLimits(max_tokens=30, ignore_end=True)
# The whole context of 4,096 tokens: long enough to be met in the middle.
LONG = common_pb2.GenerationLimits(ignore_end=True)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with an encoder and a generator."""
    root = tmp_path_factory.mktemp("mixed")
    build_synthetic(root, "tiny")
    build_tiny_generator(root, "tiny-chat", context=4096)
    return root


def worker_text(address: str) -> str:
    """The greedy answer of a decode worker itself."""
    with grpc.insecure_channel(address) as channel:
        call = worker_pb2.GenerateCall(model="tiny-chat", prompt=PROMPT, limits=LIMITS)
        events = list(WorkerStub(channel).Generate(call, timeout=60))
    assert events[-1].completed.generated_tokens == 30
    return "".join(event.delta.text for event in events)


def front_text(address: str) -> str:
    """The greedy answer through the control plane."""
    with grpc.insecure_channel(address) as channel:
        request = inference_pb2.GenerateRequest(
            model="tiny-chat", tokens=inference_pb2.PromptTokens(ids=PROMPT), limits=LIMITS
        )
        events = list(inference_pb2_grpc.InferenceStub(channel).Generate(request, timeout=60))
    return "".join(event.delta.text for event in events)


@contextlib.contextmanager
def lone_worker(repository: Path) -> Iterator[str]:
    """`python -m worker --worker-class decode`, alone; gives its address."""
    command = [sys.executable, "-m", "worker", "--worker-class", "decode"]
    command += ["--repository", str(repository), "--warm-budget-ms", "1"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            address = ""
            for line in process.stderr:
                if found := re.search(r"listening on (\S+),", line):
                    address = found[1]
                if "ready variants" in line:
                    break
            assert address
            yield address
        finally:
            process.send_signal(signal.SIGTERM)
            process.stderr.read()
    assert process.returncode == 0


def test_a_decode_worker_is_of_use_alone(mixed: Path) -> None:
    with lone_worker(mixed) as address:
        text = worker_text(address)
        assert text == worker_text(address) != ""
        with grpc.insecure_channel(address) as channel:
            database = ProtoReflectionDescriptorDatabase(channel)
            assert "orchid.v1.Worker" in database.get_services()
            # The encoder of the repository is for others.
            described = WorkerStub(channel).Describe(worker_pb2.DescribeRequest())
        assert [model.name for model in described.models] == ["tiny-chat"]


def test_a_wrong_option_is_told_with_status_2(mixed: Path) -> None:
    command = [sys.executable, "-m", "worker", "--worker-class", "both"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert "worker_class: expected one of encoder, decode, got 'both'" in ended.stderr


@pytest.fixture
def cluster(tmp_path: Path, mixed: Path) -> Iterator[LocalCluster]:
    """One encoder worker and one decode worker, kept alive."""
    spec = ClusterSpec(
        workers=1,
        decode_threads=1,
        directory=tmp_path / "cluster",
        listen="127.0.0.1:0",
        repository=mixed,
        models=("tiny", "tiny-chat"),
        worker={"variants": ["tiny-a"], "warm_budget_ms": 1},
        controlplane=PATIENT,
        supervise=True,
        restart=RestartPolicy(initial_s=0.1, maximum_s=0.2),
    )
    with LocalCluster(spec) as running:
        running.wait_ready(timeout_s=60)
        yield running


def test_both_classes_serve_from_one_repository(cluster: LocalCluster) -> None:
    status = cluster.status()
    assert sorted(worker.id for worker in status.workers) == ["decode-0", "worker-0"]
    assert [(pool.model, len(pool.variants)) for pool in status.pools] == [("tiny", 1)]
    assert [(each.model, len(each.lanes)) for each in status.generators] == [("tiny-chat", 1)]
    address = next(worker.address for worker in status.workers if worker.id == "decode-0")
    assert front_text(cluster.address) == worker_text(address) != ""


def test_a_model_of_either_class_is_unloaded_and_loaded_where_it_belongs(
    cluster: LocalCluster,
) -> None:
    for name in ("tiny-chat", "tiny"):
        unload_model(cluster.address, name)
        load_model(cluster.address, name)
    status = cluster.status()
    assert [(each.model, each.state) for each in status.generators] == [("tiny-chat", "ready")]
    assert [(pool.model, pool.state) for pool in status.pools] == [("tiny", "ready")]
    assert front_text(cluster.address)


def test_a_caller_that_goes_away_leaves_nothing_behind(cluster: LocalCluster) -> None:
    status = cluster.status()
    address = next(worker.address for worker in status.workers if worker.id == "decode-0")
    for _ in range(3):
        with grpc.insecure_channel(address) as channel:
            call = worker_pb2.GenerateCall(model="tiny-chat", prompt=PROMPT, limits=LONG)
            stream = WorkerStub(channel).Generate(call)
            while not next(stream).HasField("delta"):
                pass
    # No call is cancelled here: the connection is all that ends.
    wait_for(
        lambda: not any(w.running + w.queued for w in cluster.status().workers),
        "generations end with their connection",
    )
    settled(cluster.address)


def test_a_killed_decode_worker_ends_its_streams_and_comes_back(cluster: LocalCluster) -> None:
    before = front_text(cluster.address)
    with grpc.insecure_channel(cluster.address) as channel:
        request = inference_pb2.GenerateRequest(
            model="tiny-chat", tokens=inference_pb2.PromptTokens(ids=PROMPT), limits=LONG
        )
        stream = inference_pb2_grpc.InferenceStub(channel).Generate(request, timeout=60)
        while not next(stream).HasField("delta"):
            pass
        cluster.kill_worker("decode-0")
        with pytest.raises(grpc.RpcError) as ended:
            list(stream)
    assert ended.value.code() is grpc.StatusCode.UNAVAILABLE
    cluster.wait_ready(timeout_s=60)
    assert front_text(cluster.address) == before
    settled(cluster.address)
