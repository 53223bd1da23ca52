"""Every metric that docs/operations.md lists is served by real processes, and the reverse."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from prometheus_client.parser import text_string_to_metric_families

from deploy.cluster import ClusterError, ClusterSpec, LocalCluster
from deploy.state import StateDirectory
from protos.orchid.v1 import common_pb2, inference_pb2, inference_pb2_grpc
from tests.integration.support import PATIENT, TEXT, settled
from tests.metrics_table import documented
from worker.models.synthetic import build_synthetic
from worker.models.synthetic_generator import build_tiny_generator

ENCODER, GENERATOR = "tiny", "tiny-chat"
REQUESTS, GENERATIONS, TOKENS = 20, 3, 12
SECRET = "zanzibar"

Samples = dict[str, list[tuple[dict[str, str], float]]]


def scrape(address: str) -> tuple[dict[str, str], Samples, str]:
    """The type of each family, and its samples."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=20) as answer:
        text = answer.read().decode()
    kinds: dict[str, str] = {}
    samples: Samples = {}
    for family in text_string_to_metric_families(text):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        kinds[name] = family.type
        for sample in family.samples:
            samples.setdefault(sample.name, []).append((sample.labels, sample.value))
    return kinds, samples, text


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Both classes of worker, each process with metrics."""
    root = tmp_path_factory.mktemp("metrics")
    build_synthetic(root / "models", ENCODER)
    build_tiny_generator(root / "models", GENERATOR)
    spec = ClusterSpec(
        workers=1,
        decode_threads=1,
        directory=root / "cluster",
        listen="127.0.0.1:0",
        repository=root / "models",
        metrics="127.0.0.1:0",
        controlplane=PATIENT,
    )
    with LocalCluster(spec) as running:
        running.wait_ready(timeout_s=60)
        yield running


@pytest.fixture(scope="module")
def traffic(cluster: LocalCluster) -> LocalCluster:
    """Requests and generations went through, and a request that nobody could answer."""
    with grpc.insecure_channel(cluster.address) as channel:
        stub = inference_pb2_grpc.InferenceStub(channel)
        for _ in range(REQUESTS):
            stub.Infer(
                inference_pb2.InferRequest(
                    model=ENCODER,
                    text=inference_pb2.TextInput(texts=[f"{TEXT} {SECRET}"]),
                    request_class=inference_pb2.RequestClass(tenant="acme"),
                ),
                timeout=20,
            )
        for _ in range(GENERATIONS):
            stream = stub.Generate(
                inference_pb2.GenerateRequest(
                    model=GENERATOR,
                    text=f"{SECRET} the one and " * 12,
                    limits=common_pb2.GenerationLimits(max_tokens=TOKENS, ignore_end=True),
                    request_class=inference_pb2.RequestClass(tenant="acme"),
                    first_token_target_ms=120_000,
                    token_target_ms=60_000,
                ),
                timeout=120,
            )
            assert [event.WhichOneof("event") for event in stream][-1] == "completed"
    settled(cluster.address)
    return cluster


def test_docs_and_scrapes_name_the_same_metrics(traffic: LocalCluster) -> None:
    listed = documented()
    addresses = traffic.metrics_addresses()
    assert set(addresses) == {"controlplane", "worker-0", "decode-0"}
    served: dict[str, str] = {}
    labels: dict[str, set[str]] = {}
    for address in addresses.values():
        kinds, samples, _ = scrape(address)
        served |= kinds
        for name, found in samples.items():
            family = name if name in kinds else re.sub(r"_(bucket|sum|count)$", "", name)
            for given, _value in found:
                labels.setdefault(family, set()).update(given.keys() - {"le"})
    assert set(served) == set(listed)
    for name, (kind, known) in listed.items():
        assert served[name] == kind, name
        told = {
            "telemetry_sdk_*" if label.startswith("telemetry_sdk_") else label
            for label in labels[name]
        }
        assert told == known, name


def test_what_is_served_is_what_happened(traffic: LocalCluster) -> None:
    addresses = traffic.metrics_addresses()
    _, house, _ = scrape(addresses["controlplane"])
    _, encoder, _ = scrape(addresses["worker-0"])
    _, decoder, _ = scrape(addresses["decode-0"])

    def total(samples: Samples, name: str, **wanted: str) -> float:
        return sum(v for labels, v in samples[name] if wanted.items() <= labels.items())

    assert total(house, "orchid_requests_received_total", model=ENCODER) == REQUESTS
    assert total(house, "orchid_requests_ended_total", outcome="answered") == REQUESTS
    assert total(house, "orchid_answers_total") == REQUESTS
    assert total(house, "orchid_request_queue_seconds_count") == REQUESTS
    assert total(house, "orchid_calibration_runs_total") == REQUESTS
    assert total(house, "orchid_charged_cpu_seconds_total", tenant="acme") > 0
    assert total(house, "orchid_generations_ended_total", outcome="answered") == GENERATIONS
    assert total(house, "orchid_generation_first_token_seconds_count") == GENERATIONS
    generated = GENERATIONS * TOKENS
    assert total(house, "orchid_generation_tokens_total", kind="generated") == generated
    # The same prompt again was cached.
    assert total(house, "orchid_generation_tokens_total", kind="cached") > 0
    assert total(house, "orchid_workers", state="ready") == 2
    assert total(house, "orchid_held") == total(house, "orchid_violations") == 0
    assert total(encoder, "orchid_worker_outcomes_total", outcome="ok") == REQUESTS
    assert total(encoder, "orchid_worker_run_seconds_count") <= REQUESTS
    assert total(encoder, "orchid_worker_padded_tokens_total") == 0
    assert total(decoder, "orchid_decode_tokens_total", kind="generated") == generated
    assert total(decoder, "orchid_decode_token_gap_seconds_count") == generated - GENERATIONS
    assert total(decoder, "orchid_decode_first_token_seconds_count") == GENERATIONS
    assert total(decoder, "orchid_arena_blocks", state="held") == 0
    assert total(decoder, "orchid_arena_blocks", state="free") > 0
    for worker in (encoder, decoder):
        measured = total(worker, "orchid_memory_measured_bytes")
        assert abs(total(worker, "orchid_memory_accounted_bytes") / measured - 1.0) <= 0.1
    for samples in (house, encoder, decoder):
        assert total(samples, "orchid_expired_work_executed_total") == 0


def test_no_content_is_in_any_scrape(traffic: LocalCluster) -> None:
    for address in traffic.metrics_addresses().values():
        assert SECRET not in scrape(address)[2]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_accepts_every_scrape(traffic: LocalCluster) -> None:
    for name, address in traffic.metrics_addresses().items():
        text = scrape(address)[2]
        checked = subprocess.run(
            ["promtool", "check", "metrics"], input=text, capture_output=True, text=True
        )
        assert checked.returncode == 0, (name, checked.stderr)
        assert not checked.stderr and not checked.stdout


def test_prometheus_finds_the_processes(traffic: LocalCluster) -> None:
    directory = traffic.spec.directory
    targets = json.loads((directory / "metrics-targets.json").read_text())
    found = {each["labels"]["process"]: each["targets"] for each in targets}
    assert found == {name: [a] for name, a in traffic.metrics_addresses().items()}
    record = StateDirectory(directory).read()
    assert record is not None
    assert record.metrics_addresses() == traffic.metrics_addresses()


def test_a_taken_port_is_named_when_it_was_asked_for_and_passed_over_when_not(
    traffic: LocalCluster, tmp_path: Path
) -> None:
    taken = traffic.metrics_addresses()["controlplane"]
    settings = {
        "workers": 0,
        "listen": "127.0.0.1:0",
        "repository": traffic.spec.repository,
        "metrics": taken,
    }
    asked = ClusterSpec(directory=tmp_path / "asked", metrics_exact=True, **settings)  # type: ignore[arg-type]
    with pytest.raises(ClusterError, match=f"cannot listen for metrics on {taken}: Address"):
        LocalCluster(asked).start()
    usual = ClusterSpec(directory=tmp_path / "usual", **settings)  # type: ignore[arg-type]
    with LocalCluster(usual) as cluster:
        other = cluster.metrics_address
        assert other and other != taken
        assert scrape(other)[1]["orchid_uptime_seconds"]
        cluster.restart_controlplane()
        assert cluster.metrics_address == other
