"""Records of a running cluster: workers' CPU time is charged, callers' words are not kept."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import grpc
import pytest

from deploy.cluster import ClusterSpec, LocalCluster
from deploy.fleet_views import FleetStatus
from deploy.records.reading import reading
from deploy.records.summary import spending, summarise
from protos.orchid.v1 import common_pb2, inference_pb2, inference_pb2_grpc
from tests.integration.support import Tally, connected, settled, wait_for
from tests.integration.test_command_line import orchid
from worker.models.synthetic import build_synthetic
from worker.models.synthetic_generator import build_tiny_generator

SECRET = "xylophone"
TEXT = f"the {SECRET} was good and the story moving"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("records")


@pytest.fixture(scope="module")
def file(root: Path) -> Path:
    return root / "cluster" / "records.sqlite"


@pytest.fixture(scope="module")
def cluster(root: Path, file: Path) -> Iterator[LocalCluster]:
    """An encoder and a decode worker whose control plane keeps records."""
    build_synthetic(root / "models", "paced", busy={"tiny-a": 5000, "tiny-b": 1000})
    build_tiny_generator(root / "models", "tiny-chat")
    spec = ClusterSpec(
        workers=1,
        decode_threads=1,
        directory=root / "cluster",
        listen="127.0.0.1:0",
        repository=root / "models",
        controlplane={"report_interval_ms": 1000, "records": {"file": str(file)}},
    )
    with LocalCluster(spec) as running:
        running.wait_ready(timeout_s=60)
        yield running


async def ask(address: str, requests: int, generations: int) -> Tally:
    """Requests of two tenants, some of them too late or given up, and whole generations."""
    tally = Tally()
    async with connected(address) as client, grpc.aio.insecure_channel(address) as channel:
        stub: inference_pb2_grpc.InferenceAsyncStub = inference_pb2_grpc.InferenceStub(channel)

        async def generate(number: int) -> None:
            request = inference_pb2.GenerateRequest(
                model="tiny-chat",
                text=f"What is a {SECRET}? " * (1 + number % 3),
                limits=common_pb2.GenerationLimits(max_tokens=60, ignore_end=True),
                request_class=inference_pb2.RequestClass(tenant="writer"),
                first_token_target_ms=120_000,
                token_target_ms=60_000,
            )
            async for _ in stub.Generate(request, timeout=120):
                pass

        async def infer(number: int) -> None:
            await client.finish(
                client.call(
                    "paced",
                    text=TEXT,
                    tenant=("shop", "lab")[number % 2],
                    timeout_s=0.02 if number % 10 == 9 else 30.0,
                ),
                tally,
            )

        for start in range(0, requests, 20):
            await asyncio.gather(*[infer(n) for n in range(start, min(requests, start + 20))])
        await asyncio.gather(*[generate(n) for n in range(generations)])
    return tally


def ran(*arguments: str, cwd: Path) -> str:
    """What `orchid records` prints."""
    done = orchid("records", *arguments, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def reported(cluster: LocalCluster) -> FleetStatus:
    """The status once workers have reported all that was charged."""
    settled(cluster.address)
    last: list[FleetStatus] = []

    def complete() -> bool:
        last[:] = [cluster.status()]
        charges = [worker.charges for worker in last[0].workers]
        return all(each.run_cpu_ms >= 0.999 * each.charged_cpu_ms > 0 for each in charges)

    wait_for(complete, "every worker has reported what it spent")
    return last[0]


def test_charges_add_up_to_what_workers_measured(cluster: LocalCluster, file: Path) -> None:
    asyncio.run(ask(cluster.address, 200, 8))
    status = reported(cluster)
    for worker in status.workers:
        charges = worker.charges
        assert charges.charged_cpu_ms == pytest.approx(charges.run_cpu_ms, rel=0.05), worker.id
        assert charges.process_cpu_ms > charges.run_cpu_ms > 0
    (writer,) = [w.charges for w in status.workers if w.worker_class == "decode"]
    assert writer.charged_live_token_ms == pytest.approx(writer.live_token_ms, rel=0.01)
    assert writer.live_token_ms > 0

    measured_ms = sum(worker.charges.run_cpu_ms for worker in status.workers)

    def written() -> bool:
        with reading(file) as database:
            kept = summarise(database)[0].cpu_ms >= 0.96 * measured_ms
            return kept and spending(database).run_ms >= 0.99 * measured_ms

    wait_for(written, "every run is in a record, and every worker's total there")
    with reading(file) as database:
        (whole,) = summarise(database)
        by_tenant = {each.group[0]: each for each in summarise(database, ["tenant"])}
        encoder = {each.group[0]: each for each in summarise(database, ["lane"])}["encoder"]
        (least,) = database.execute(
            "SELECT min(measured_peak_bytes - measured_transfer_bytes) FROM requests "
            "WHERE lane = 'encoder' AND outcome = 'answered'"
        ).fetchone()
    assert whole.cpu_ms == pytest.approx(measured_ms, rel=0.05)
    assert whole.live_token_ms == pytest.approx(writer.live_token_ms, rel=0.01)
    assert set(by_tenant) == {"shop", "lab", "writer"}
    assert by_tenant["writer"].answered == 8
    assert by_tenant["shop"].on_time > 50
    assert encoder.ratio is not None and 0.2 < encoder.ratio < 5.0
    # What the runs took in the engine, beside what came and went.
    assert least > 0


def test_no_word_of_a_caller_is_in_the_store(cluster: LocalCluster, file: Path) -> None:
    asyncio.run(ask(cluster.address, 20, 2))
    settled(cluster.address)
    found = [each for each in file.parent.glob("records.sqlite*") if each.is_file()]
    assert found
    for path in found:
        content = path.read_bytes()
        assert SECRET.encode() not in content and b"was good and" not in content
    assert any(b"shop" in path.read_bytes() for path in found)


def test_the_command_sums_a_live_cluster(cluster: LocalCluster, tmp_path: Path) -> None:
    asyncio.run(ask(cluster.address, 20, 2))
    settled(cluster.address)
    state = str(cluster.spec.directory)
    told = json.loads(ran("--json", "--state", state, cwd=tmp_path))
    assert told["total"]["requests"] > 0 and set(told["by"]) == {"tenant", "class", "variant"}
    wait_for(
        lambda: "of it charged" in ran("--state", state, cwd=tmp_path),
        "what workers spent is recorded",
    )
    assert "shop" in ran("--state", state, cwd=tmp_path)
    path = tmp_path / "trace.csv"
    assert "requests" in ran("export", str(path), "--trace", "--state", state, cwd=tmp_path)
    sim = ("sim", "--trace", str(path), "--policies", "price", "--seeds", "1")
    played = orchid(*sim, cwd=tmp_path)
    assert "a recorded trace" in played.stdout, played.stderr


def test_records_outlive_a_control_plane_that_is_killed(cluster: LocalCluster, file: Path) -> None:
    asyncio.run(ask(cluster.address, 20, 0))

    def count() -> int:
        with reading(file) as database:
            return round(summarise(database)[0].requests)

    wait_for(lambda: count() >= 15, "records are written")
    before = count()
    cluster.kill("controlplane")
    assert count() >= before
    cluster.start_controlplane()
    cluster.wait_ready(timeout_s=60)
    with closing(sqlite3.connect(file)) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert count() >= before > 0
    asyncio.run(ask(cluster.address, 20, 0))
    # Some are so short of time that they may not have come as far as the queue.
    wait_for(lambda: count() >= before + 15, "new records are added")
