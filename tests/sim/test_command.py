"""`orchid sim` and profiles in files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bench.report import read_report
from bench.sim import model
from bench.sim.model import built_in, read_profile, routable, two_variants, write_profile
from bench.sim.sweep import run_sweep, scale_of
from deploy.cli import app
from deploy.cli.sim import _EVERY_LOAD, _EVERY_POLICY, print_points
from tests.sim.cascade_worlds import sweep

SHORT = ["sim", "--seconds", "1", "--seeds", "2", "--loads", "0.5,2"]


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, [*SHORT, *arguments])
    return result.exit_code, result.output


def test_every_policy_and_figure_is_in_the_summary(tmp_path: Path) -> None:
    path = tmp_path / "sim.json"
    assert run("--json", str(path))[0] == 0
    report = read_report(path)
    assert report.bench == "sim"
    for policy in _EVERY_POLICY.split(","):
        for figure in ("accurate_goodput", "goodput", "on_time", "accuracy", "cpu_cost", "p95_ms"):
            assert f"{policy}@0.5.{figure}" in report.summary
        assert f"{policy}@2.share_most_accurate" in report.summary
    assert "bound@2.achievable" in report.summary


def test_it_says_whose_services_are_played(tmp_path: Path) -> None:
    shown = run("--policies", "price")[1]
    assert "profiled on a server CPU" in shown and "--model" in shown
    write_profile(tmp_path / "own.json", built_in())
    assert (
        "server CPU" not in run("--policies", "price", "--profile", str(tmp_path / "own.json"))[1]
    )


def test_every_figure_is_whole_on_eighty_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    made = sweep("published-adaptive", "orchid-cascade", loads=(0.95,), seconds=1.0)
    print_points(list(run_sweep(made)), scale_of(made), made)
    shown = capsys.readouterr().out
    assert "published-adaptive" in shown and "lated" in shown
    assert "\N{HORIZONTAL ELLIPSIS}" not in shown


def test_the_same_command_gives_the_same_figures(tmp_path: Path) -> None:
    found = []
    for name in ("one.json", "two.json"):
        assert run("--json", str(tmp_path / name), "--policies", "orchid,bound")[0] == 0
        found.append(read_report(tmp_path / name).summary)
    assert found[0] == found[1]


def test_faults_are_played_and_leave_the_bound_out() -> None:
    code, output = run("--lose", "0.3:0.05:0.6", "--slow", "0.1:0.5:1.5", "--tail", "0.02:5")
    assert code == 0
    assert "published-adaptive" in output and "bound" not in output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--policies", "best"], "unknown policy 'best'"),
        (["--loads", "a"], "expected numbers separated by ','"),
        (["--tail", "0.1"], "expected 2 numbers separated by ':'"),
        (["--lose", "1"], "AT:DETECT"),
        (["--arrivals", "surge"], "unknown arrivals"),
        (["--variants", "nobody"], "no variant 'nobody'"),
        (["--policies", "bound", "--slow", "0:1:2"], "the bound knows no faults"),
    ],
)
def test_a_wrong_option_is_refused_with_what_it_takes(arguments: list[str], message: str) -> None:
    code, output = run(*arguments)
    assert code == 1
    assert message in " ".join(output.split())


def test_the_defaults_are_those_of_the_sweep() -> None:
    from bench.sim.sweep import BOUND, LOADS, POLICIES

    assert tuple(_EVERY_POLICY.split(",")) == (*POLICIES, BOUND)
    assert tuple(float(load) for load in _EVERY_LOAD.split(",")) == LOADS


def test_a_profile_comes_back_as_it_was_written(tmp_path: Path) -> None:
    for each in (built_in(), two_variants()):
        write_profile(tmp_path / "profile.json", each)
        assert read_profile(tmp_path / "profile.json") == each


def test_the_profile_of_two_variants_is_the_one_in_the_code() -> None:
    assert read_profile(Path(model.__file__).with_name("two.json")) == two_variants()


def test_the_built_in_model_routes_to_its_frontier() -> None:
    names = [candidate.name for candidate in routable(built_in().table())]
    assert names == ["mpnet8", "mpnet6", "mpnet4", "mini6", "mini4", "mini3"]


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("s0_ns", -1, "s0_ns must be a number of at least 0"),
        ("quality", 2, "quality must be at most 1"),
        ("name", 7, "name must be text"),
    ],
)
def test_a_bad_profile_is_refused(tmp_path: Path, field: str, value: object, message: str) -> None:
    path = tmp_path / "profile.json"
    write_profile(path, two_variants())
    document = json.loads(path.read_text())
    document["variants"][0][field] = value
    path.write_text(json.dumps(document))
    with pytest.raises(ValueError, match=message):
        read_profile(path)
