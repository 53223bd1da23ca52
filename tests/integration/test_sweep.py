"""A whole sweep of a small model: live, simulated, bound, and again without measuring."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bench.report import read_report
from deploy.cli import app


def test_a_sweep_is_measured_once_and_goes_on_where_it_was(
    repository: Path, tmp_path: Path
) -> None:
    path = tmp_path / "out" / "sweep.json"
    command = ["bench", "sweep", "--model", "paced", "--repository", str(repository)]
    command += ["--workers", "1", "--seconds", "1", "--warmup", "0.3", "--json", str(path)]
    command += ["--baseline-seconds", "1"]
    grid = ["--policies", "price,cheap", "--loads", "0.5,1.5", "--seeds", "1"]
    ended = CliRunner().invoke(app, [*command, *grid])
    assert ended.exit_code == 0, ended.output
    report = read_report(path)
    for policy in ("price", "cheap", "sim-price", "bound"):
        for load in ("0.5", "1.5"):
            at = f"{policy}@{load}"
            for figure in ("accurate_goodput", "goodput", "on_time", "share_most_accurate"):
                assert 0.0 <= report.summary[f"{at}.{figure}"] <= 1.0
    assert report.summary["decision_us_p99"] > 0
    assert report.summary["live_over_bound@0.5"] > 0
    live = {(p["policy"], p["load_factor"]): p for p in report.points if p["kind"] == "live"}
    (capacity,) = (b["capacity_per_s"] for b in report.settings["baselines"].values())
    assert live["cheap", 0.5]["rate_per_s"] == 0.5 * capacity
    # Both policies met the same requests.
    assert live["price", 1.5]["offered"] == live["cheap", 1.5]["offered"]
    assert live["cheap", 0.5]["variant_share"].keys() <= {"tiny-b"}
    with path.with_suffix(".csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(report.points) == 10
    assert all(float(row["accurate_goodput"]) <= 1.0 for row in rows)
    assert path.with_suffix(".png").read_bytes().startswith(b"\x89PNG")

    again = CliRunner().invoke(app, [*command, *grid])
    assert again.exit_code == 0 and "10 points are kept" in again.output, again.output
    kept = {(p["policy"], p["load_factor"]): p for p in read_report(path).points}
    assert kept["price", 1.5] == live["price", 1.5]

    changed = CliRunner().invoke(app, [*command, *grid, "--warmup", "0.4"])
    assert changed.exit_code == 1 and "warmup_s 0.3" in changed.output, changed.output
    assert read_report(path).points == read_report(path).points

    path.with_suffix(".png").unlink()
    drawn = CliRunner().invoke(app, ["bench", "plot", str(path)])
    assert drawn.exit_code == 0 and path.with_suffix(".png").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--policies", "best"], "unknown policy 'best'"),
        (["--loads", "nan"], "finite numbers"),
        (["--loads", "0"], "load above 0"),
        (["--arrivals", "surge"], "expected poisson, mmpp or flash"),
        (["--model", "nobody"], "there is no model nobody"),
    ],
)
def test_what_cannot_be_swept_is_said_before_anything_starts(
    repository: Path, tmp_path: Path, arguments: list[str], message: str
) -> None:
    command = ["bench", "sweep", "--repository", str(repository), "--model", "paced"]
    command += ["--json", str(tmp_path / "s.json")]
    ended = CliRunner().invoke(app, [*command, *arguments])
    assert ended.exit_code == 1 and message in ended.output, ended.output
    assert not (tmp_path / "s.json").exists()


def test_a_killed_worker_is_replaced_and_the_recovery_told(
    repository: Path, tmp_path: Path
) -> None:
    path = tmp_path / "kill.json"
    command = ["bench", "scenario", "kill", "--model", "paced", "--repository", str(repository)]
    command += ["--workers", "2", "--seconds", "6", "--warmup", "0.5", "--seeds", "1"]
    command += ["--policies", "price,cheap", "--loads", "0.5", "--json", str(path)]
    command += ["--baseline-seconds", "1"]
    ended = CliRunner().invoke(app, command)
    assert ended.exit_code == 0, ended.output
    assert "back after s" in ended.output
    report = read_report(path)
    for policy in ("price", "cheap", "sim-price", "sim-cheap"):
        at = f"{policy}@0.5"
        assert report.summary[f"{at}.recovery_s"] >= 0.0
        assert report.summary[f"{at}.recovered"] in (0.0, 1.0)
        assert 0.0 <= report.summary[f"{at}.on_time_lowest"] <= 1.0
    assert not any(point["policy"] == "bound" for point in report.points)
    live = [point for point in report.points if point["kind"] == "live"]
    assert len(live) == 2
    # The worker went and came back, though perhaps after the traffic.
    assert all(point["back_s"] > 6.5 / 3 for point in live)
    assert "replaced after s" in ended.output
    # Nobody knows what the killed one and its replacement used.
    assert all(point["cpu_cost_ms"] is None for point in live)
    assert "price@0.5.cpu_cost" not in report.summary
    for policy in ("price", "cheap"):
        assert report.summary[f"{policy}@0.5.replaced_s"] > 0.0
        for phase in ("before", "during", "after"):
            assert 0.0 <= report.summary[f"{policy}@0.5.on_time_{phase}"] <= 1.0
            assert 0.0 <= report.summary[f"{policy}@0.5.accurate_goodput_{phase}"] <= 1.0
    assert path.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("name", ["hog", "mixed", "mmpp", "flash"])
def test_misfortune_bursts_and_mixed_deadlines_are_played(
    repository: Path, tmp_path: Path, name: str
) -> None:
    path = tmp_path / f"{name}.json"
    command = ["bench", "scenario", name, "--model", "paced", "--repository", str(repository)]
    command += ["--workers", "1", "--seconds", "2", "--warmup", "0.3", "--seeds", "1"]
    command += ["--policies", "price", "--json", str(path), "--baseline-seconds", "1"]
    ended = CliRunner().invoke(app, command)
    assert ended.exit_code == 0, ended.output
    report = read_report(path)
    assert "sim-price@0.8.accurate_goodput" in report.summary
    if name == "mixed":
        assert {f"price@0.8.on_time_at_{f}" for f in ("0.5", "1", "2")} <= set(report.summary)
    elif name == "mmpp":
        assert "price@0.8.on_time_busy" in report.summary
    else:
        assert "price@0.8.on_time_during" in report.summary
    # The bound knows no hog.
    assert ("bound@0.8.accurate_goodput" in report.summary) == (name != "hog")
    path.with_suffix(".png").unlink()
    assert CliRunner().invoke(app, ["bench", "plot", str(path)]).exit_code == 0
    assert path.with_suffix(".png").exists()


def test_an_unknown_scenario_is_refused_with_the_known_ones() -> None:
    ended = CliRunner().invoke(app, ["bench", "scenario", "quake"])
    assert ended.exit_code == 1
    assert "mmpp, flash, mixed, hog, kill" in ended.output
