"""The report of a profile: frontier, verdicts on 8 bits, warnings; drawn again from JSON."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bench.profile import Int8Verdict, profile_report, warnings_of
from bench.profile_plot import plot_profile
from bench.report import Report, read_report, write_report
from deploy.cli import app
from tests.unit.worker.test_profile_file import MACHINE, measured
from worker.models.evidence import FOLDER
from worker.models.manifest import Manifest, load_manifest, save_manifest
from worker.models.statistics import accuracy_evidence
from worker.models.synthetic import build_synthetic
from worker.profile_file import (
    SCHEMA,
    MeasuredVariant,
    ProfileFile,
    profile_path,
    read_profile_file,
    write_profile_file,
)

RUNNER = CliRunner(env={"COLUMNS": "120"})
RIGHT = {"deep": 180, "deep-int8": 180, "flat": 150, "flat-int8": 152}
TIMES = {"deep": 2.0, "deep-int8": 1.0, "flat": 0.5, "flat-int8": 0.49}


def scaled(name: str, factor: float) -> MeasuredVariant:
    one = measured(name, name)
    profile = replace(
        one.profile,
        s0_us=10.0 * factor,
        s1_us_per_token=2.0 * factor,
        p50_us=74.0 * factor,
    )
    shapes = tuple(replace(shape, p50_us=74.0 * factor) for shape in one.shapes)
    return replace(one, profile=profile, shapes=shapes)


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    """Two depths in two precisions, on the files of the tiny model."""
    folder = build_synthetic(tmp_path)
    made = load_manifest(folder)
    variants = tuple(
        replace(
            made.variants[0],
            name=name,
            quality=(accuracy_evidence("words", right, 200), accuracy_evidence("tweets", 100, 200)),
        )
        for name, right in RIGHT.items()
    )
    save_manifest(replace(made, variants=variants), folder)
    return load_manifest(folder)


@pytest.fixture
def folder(manifest: Manifest, tmp_path: Path) -> Path:
    file = ProfileFile(
        schema=SCHEMA,
        model="tiny",
        machine=MACHINE,
        host={},
        commit="0123456789abcdef",
        command="orchid profile tiny",
        finished="2026-01-01T00:00:00+00:00",
        variants={name: scaled(name, factor) for name, factor in TIMES.items()},
    )
    write_profile_file(profile_path(tmp_path / "tiny", MACHINE), file)
    return tmp_path / "tiny"


@pytest.fixture
def report(folder: Path, manifest: Manifest) -> Report:
    file = read_profile_file(profile_path(folder, MACHINE))
    return profile_report(file, manifest, folder, 0.002)


def test_dominated_variants_are_named_with_what_dominates_them(report: Report) -> None:
    by = {p["variant"]: p["dominated_by"] for p in report.points if p["kind"] == "variant"}
    assert by == {"deep": "deep-int8", "deep-int8": "", "flat": "flat-int8", "flat-int8": ""}
    assert report.summary["routed"] == 2


def test_eight_bits_are_judged_by_time_and_accuracy(report: Report) -> None:
    verdicts = {p["variant"]: p for p in report.points if p["kind"] == "int8"}
    assert verdicts["deep-int8"]["time"] == pytest.approx(0.5)
    assert verdicts["deep-int8"]["difference"] == 0.0
    assert not verdicts["deep-int8"]["paired"]
    assert verdicts["deep-int8"]["verdict"] == "faster; a loss of accuracy is not ruled out"
    assert verdicts["flat-int8"]["verdict"] == "does not pay: hardly faster"


def test_answers_to_the_same_items_narrow_the_interval(folder: Path, manifest: Manifest) -> None:
    file = read_profile_file(profile_path(folder, MACHINE))
    (folder / FOLDER).mkdir()
    right = "1" * 180 + "0" * 20
    for name in ("deep", "deep-int8"):
        text = f'{{"key": "{name}", "source": "same", "right": "{right}"}}'
        (folder / FOLDER / f"{name}.words.json").write_text(text)
    points = profile_report(file, manifest, folder, 0.002).points
    verdict = next(p for p in points if p["kind"] == "int8" and p["variant"] == "deep-int8")
    assert verdict["paired"]
    assert -0.015 < verdict["low"] < 0 < verdict["high"] < 0.015


def test_a_loss_of_accuracy_does_not_pay() -> None:
    lossy = Int8Verdict("a-int8", "a", 0.6, "words", 2000, -0.02, -0.03, -0.01, True)
    assert lossy.verdict == "does not pay: loses accuracy"
    assert replace(lossy, difference=-0.001, low=-0.004, high=0.002).verdict == "pays"


def test_neighbours_and_unsteady_passes_are_warned_of() -> None:
    texts = warnings_of({"a": scaled("a", 1.0)})
    assert "other processes took 0.20 CPUs" in texts[0]
    assert "(up to 20%) for a" in texts[1]
    calm = replace(scaled("a", 1.0), passes=(), spread=0.01)
    assert warnings_of({"a": calm}) == []


def test_the_picture_is_drawn_again_from_the_json(report: Report, tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    write_report(path, report)
    plot_profile(read_report(path), tmp_path / "profile.png")
    assert (tmp_path / "profile.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="the report of a profile"):
        plot_profile(replace(report, bench="demo"), tmp_path / "other.png")


def test_show_and_from_tell_the_same_without_measuring(folder: Path, tmp_path: Path) -> None:
    json, png = tmp_path / "p.json", tmp_path / "p.png"
    arguments = ["profile", "tiny", "--repository", str(tmp_path), "--show"]
    shown = RUNNER.invoke(app, [*arguments, "--json", str(json), "--plot", str(png)])
    assert shown.exit_code == 0, shown.output
    assert "dominated by deep-int8" in shown.output and "hardly faster" in shown.output
    assert png.is_file()
    again = RUNNER.invoke(app, ["profile", "--from", str(json)])
    assert again.exit_code == 0
    assert again.output.splitlines()[:8] == shown.output.splitlines()[:8]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--passes", "2"], "at least 3 passes"),
        (["--variant", "nope"], "expected a variant of deep"),
        (["--show", "--threads", "7"], "orchid profile tiny measures one"),
    ],
)
def test_what_cannot_be_done_is_told(
    folder: Path, tmp_path: Path, arguments: list[str], text: str
) -> None:
    result = RUNNER.invoke(app, ["profile", "tiny", "--repository", str(tmp_path), *arguments])
    assert result.exit_code == 1
    assert text in result.output


def test_a_plan_is_made_from_the_profile(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    arguments = ["plan", "--rate", "500", "--deadline", "20", "--model", "tiny", "--check"]
    result = RUNNER.invoke(
        app, [*arguments, "--repository", str(tmp_path), "--tokens", "16,32", "--json", str(out)]
    )
    assert result.exit_code == 0, result.output
    report = read_report(out)
    assert f"{report.summary['workers']:g} worker" in result.output
    assert all(point["simulated"]["seeds"] == 2 for point in report.points)
    assert report.summary["on_time"] >= 0.99


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--rate", "0", "--deadline", "20"], "the rate must be above 0"),
        (["--rate", "9", "--deadline", "20", "--tokens", "x"], "separated by commas"),
        (["--rate", "9", "--deadline", "20", "--minimum-quality", "0.99"], "below the floor"),
        (["--rate", "9", "--deadline", "0.01"], "longer deadline"),
    ],
)
def test_plans_that_cannot_be_made_are_told(
    folder: Path, tmp_path: Path, arguments: list[str], text: str
) -> None:
    target = ["--model", "tiny", "--repository", str(tmp_path)]
    result = RUNNER.invoke(app, ["plan", *arguments, *target])
    assert result.exit_code == 1
    assert text in result.output
