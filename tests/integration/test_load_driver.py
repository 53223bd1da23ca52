"""The load driver through every way in: all answered, truth and variant read right."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import numpy as np
from typer.testing import CliRunner

from bench.load.plan import LoadPlan, Protocol
from bench.load.run import run_load, run_records
from bench.report import read_report
from bench.sim.calibration import calibrate
from bench.sim.live import live_model
from bench.workloads import tiny_workload
from deploy.cli import app
from deploy.traces.spans import read_latest
from tests.integration.conftest import StartCluster
from tests.integration.support import settled


async def test_every_protocol_reads_variant_and_class(start_cluster: StartCluster) -> None:
    cluster = start_cluster(1, models=("tiny",))
    workload = tiny_workload()
    ways: list[tuple[Protocol, bool, int]] = [
        ("native", False, 2),
        ("native", True, 1),
        ("oip", False, 1),
        ("oip", True, 1),
    ]
    for protocol, stream, processes in ways:
        plan = LoadPlan(
            target=cluster.address,
            model="tiny",
            rate_per_s=60.0,
            duration_s=1.5,
            warmup_s=0.3,
            protocol=protocol,
            stream=stream,
            variant="tiny-a",
            watch=cluster.pids(),
        )
        result = await asyncio.to_thread(run_load, plan, workload, processes=processes)
        way = f"{protocol} stream={stream}: {result.examples}"
        assert result.outcomes == {"OK": result.offered}, way
        assert result.variant_share == {"tiny-a": 1.0}, way
        # 0.9425 of the population are right; a draw of about ninety is not far from it.
        assert 0.8 < result.accuracy <= 1.0, way
        assert set(result.cpu_ms_per_request) == {"controlplane", "worker-0"}, way
        assert result.driver_cpu_ms_per_request > 0, way
    settled(cluster.address)


def test_a_recorded_run_is_simulated_with_other_workers_and_deadlines(
    start_cluster: StartCluster, repository: Path, tmp_path: Path
) -> None:
    cluster = start_cluster(1, models=("paced",))
    recorded, result = tmp_path / "run.csv", tmp_path / "run.json"
    load = ["bench", "load", "--model", "paced", "--repository", str(repository)]
    load += ["--address", cluster.address, "--rate", "40", "--seconds", "2", "--warmup", "0.5"]
    load += ["--deadline-ms", "200", "--deadline-factors", "0.5,2", "--tenants", "gold=1,free=2"]
    load += ["--arrivals", "mmpp", "--record", str(recorded), "--json", str(result)]
    ended = CliRunner().invoke(app, load)
    assert ended.exit_code == 0, ended.output
    assert "tenant gold" in ended.output

    summary = read_report(result).summary
    # Expected and measured correctness are of the same answers.
    assert summary["accurate_goodput"] <= summary["on_time"]
    assert abs(summary["accurate_goodput"] - summary["right_share"]) < 0.25
    rows = recorded.read_text().splitlines()
    assert len(rows) > 40 and rows[0].endswith("variant,outcome,service_us")
    assert {row.split(",")[2] for row in rows[1:]} == {"100000", "400000"}
    assert any(",on_time," in row and int(row.split(",")[5]) > 0 for row in rows[1:])

    played = tmp_path / "sim.json"
    sim = ["sim", "--trace", str(recorded), "--profile", str(recorded.with_suffix(".profile.json"))]
    sim += ["--workers", "6", "--deadline-ms", "30", "--policies", "orchid,bound", "--seeds", "1"]
    ended = CliRunner().invoke(app, [*sim, "--json", str(played)])
    assert ended.exit_code == 0, ended.output
    report = read_report(played)
    assert report.points[0]["runs"][0]["offered"] > 30
    assert (
        report.summary["bound@1.achievable"] >= report.summary["orchid@1.accurate_goodput"] - 0.02
    )


async def test_a_run_that_is_traced_calibrates_the_simulator(
    start_cluster: StartCluster, tmp_path: Path
) -> None:
    cluster = start_cluster(1, models=("paced",))
    workload = replace(tiny_workload(), tokens=tuple(len(t) for t in tiny_workload().texts))
    plan = LoadPlan(
        target=cluster.address, model="paced", rate_per_s=30.0, duration_s=2.0, warmup_s=0.2,
        trace_share=0.5, trace_directory=str(tmp_path),
    )  # fmt: skip
    records = await asyncio.to_thread(run_records, plan, workload)
    model = await asyncio.to_thread(live_model, cluster.address, "paced")
    found = calibrate(records, workload, model)
    assert found is not None and found.runs > 5
    assert all(ratio > 0 for row in found.ratios.values() for ratio in row)
    assert all(np.all(np.diff(row) >= 0) for row in found.ratios.values())
    assert found.trip_ns > 0 and min(found.hops_ns) >= 0
    spans = read_latest(tmp_path)
    assert 0 < len(spans) < len(records.due_ns)
    assert {(span.name, span.process, span.fault) for span in spans} == {("Infer", "load-0", "")}
