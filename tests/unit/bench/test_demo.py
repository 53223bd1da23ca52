"""The demonstration's table and picture say what was measured."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

from bench.demo import LOAD_FACTORS, POLICIES, DemoRun
from bench.load.metrics import Latency, LoadResult
from bench.plots import plot_sweep
from bench.report import host_facts, read_report, write_report
from bench.sweep import Baseline, SweepPoint, SweepSettings, sweep_seconds
from deploy.cli.demo_table import demo_tables


def result(on_time: float, latency: bool = True) -> LoadResult:
    return LoadResult(
        offered=100,
        offered_per_s=10.0,
        answered=90,
        answered_per_s=9.0,
        on_time_answers=int(100 * on_time),
        late=0,
        refused=10,
        shed=0,
        lost=0,
        on_time=on_time,
        on_time_of_admitted=min(1.0, on_time / 0.9),
        accuracy=0.9 if latency else float("nan"),
        right_share=0.9 * on_time,
        quality=0.9,
        accurate_goodput=0.9 * on_time,
        outcomes={"OK": 90, "RESOURCE_EXHAUSTED": 10},
        variant_share={"mpnet12": 0.75, "mini6": 0.25},
        latency=Latency(10, 11, 12, 13, 14, 15, 10.5, "") if latency else None,
        cpu_s={"controlplane": 1.0, "worker-0": 5.0},
        cpu_ms_per_request={"controlplane": 1.0, "worker-0": 5.0, "worker-1": 6.5},
        cpu_cost_ms=11.5,
        driver_cpu_ms_per_request=0.3,
        send_lag_p99_ms=1.0,
        window_s=10.0,
        examples={"RESOURCE_EXHAUSTED": "full"},
    )


def demo_run() -> DemoRun:
    settings = SweepSettings(model="m", policies=POLICIES, load_factors=LOAD_FACTORS)
    points = [
        SweepPoint(policy, factor, 10 * factor, result(0.97, latency=factor < 2), 0)
        for policy in POLICIES
        for factor in LOAD_FACTORS
    ]
    return DemoRun(
        2,
        settings,
        Baseline("mpnet12", 20.0, 60.0, 100.0, ("mpnet12", "mpnet6", "mini6")),
        points,
        host_facts(),
    )


def test_the_table_has_a_row_for_each_policy_and_load() -> None:
    console = Console(file=io.StringIO(), width=80)
    for part in demo_tables(demo_run()):
        console.print(part)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert text.count("97.0%") == 12
    assert text.count("1.0+11.5") == 12
    answered_by = text[text.index("who answered") :]
    assert answered_by.index("mpnet12") < answered_by.index("mini6")
    assert "mpnet6" not in answered_by
    assert text.count("75%") == 4
    assert text.count("│ours ") == len(LOAD_FACTORS)
    assert max(map(len, text.splitlines())) <= 80
    assert "worth waiting 60 ms" in text


def test_the_picture_is_drawn_from_the_json_alone(tmp_path: Path) -> None:
    write_report(tmp_path / "demo.json", demo_run().report())
    report = read_report(tmp_path / "demo.json")
    assert report.summary["on_time_orchid-cascade_0.4"] == 0.97
    assert report.summary["capacity_per_s"] == 100.0
    plot_sweep(report, tmp_path / "demo.png")
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")


def test_a_second_demonstration_fits_its_time() -> None:
    assert sweep_seconds(demo_run().settings) < 180
