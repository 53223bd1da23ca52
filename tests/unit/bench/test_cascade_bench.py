"""Cascades offline: envelopes, curves and gains of answers whose truth is known; the picture."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from bench.cascade import SHARES, run_cascade
from bench.cascade_plot import plot_cascade
from bench.report import read_report
from deploy.cli import app
from tests.unit.worker.models.test_escalations import sample
from tests.unit.worker.test_profile_file import MACHINE, measured
from worker.models.escalations import Sample, confidence_evidence
from worker.models.evidence import with_confidence
from worker.models.manifest import Manifest, load_manifest, save_manifest
from worker.models.recorded import Recorded, recorded_path, write_recorded
from worker.models.statistics import accuracy_evidence
from worker.models.synthetic import build_synthetic
from worker.profile_file import SCHEMA, ProfileFile, profile_path, write_profile_file

RUNNER = CliRunner(env={"COLUMNS": "200"})
TIMES = {"big": 8.0, "small": 1.0}


def recorded(of: Sample) -> Recorded:
    tokens = np.full(len(of), 32, np.int32)
    return Recorded(tokens, of.labels.astype(np.int32), of.logits)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The tiny model's files under two variants whose recorded answers were drawn."""
    folder = build_synthetic(tmp_path)
    made = load_manifest(folder)
    fitting, testing = sample(2000, 1), sample(4000, 2)
    variants = tuple(
        replace(
            made.variants[0],
            name=name,
            quality=(accuracy_evidence("p", int(testing.right(name).sum()), len(testing)),),
        )
        for name in TIMES
    )
    manifest = with_confidence(
        replace(made, variants=variants), confidence_evidence("p", fitting, testing)
    )
    save_manifest(manifest, folder)
    write_recorded(recorded_path(folder, "p"), recorded(testing))
    write_recorded(recorded_path(folder, "p-validation"), recorded(fitting))
    return folder


@pytest.fixture
def file(folder: Path) -> ProfileFile:
    variants = {}
    for name, factor in TIMES.items():
        one = measured(name, name)
        profile = replace(
            one.profile,
            s0_us=0.0,
            s1_us_per_token=10.0 * factor,
            p50_us=320.0 * factor,
        )
        variants[name] = replace(one, profile=profile)
    made = ProfileFile(
        schema=SCHEMA,
        model="tiny",
        machine=MACHINE,
        host={},
        commit="0123456789abcdef",
        command="orchid profile tiny",
        finished="2026-01-01T00:00:00+00:00",
        variants=variants,
    )
    write_profile_file(profile_path(folder, MACHINE), made)
    return made


@pytest.fixture
def manifest(folder: Path) -> Manifest:
    return load_manifest(folder)


def test_a_cascade_is_worth_more_than_the_best_mix_at_the_same_cost(
    folder: Path, manifest: Manifest, file: ProfileFile
) -> None:
    report = run_cascade(folder, manifest, file, "p")
    assert report.settings["pair"] == ["small", "big"]
    for share in SHARES:
        name = f"cascade@{share:g}"
        assert report.summary[f"{name}.escalated"] == pytest.approx(share, abs=0.04)
        cost = (1.0 + 8.0 * report.summary[f"{name}.escalated"]) / 8.0
        assert report.summary[f"{name}.cost"] == pytest.approx(cost)
        assert report.summary[f"{name}.accuracy"] > report.summary[f"{name}.fixed"] + 0.01
    assert report.summary["largest_error"] < 0.03
    assert report.summary["most_ahead"] > 0.02


def test_curves_end_at_the_variants_and_deciles_add_up_to_the_mean_gain(
    folder: Path, manifest: Manifest, file: ProfileFile
) -> None:
    report = run_cascade(folder, manifest, file, "p")
    accuracy = {p["variant"]: p["accuracy"] for p in report.points if p["kind"] == "variant"}
    curve = [point for point in report.points if point["kind"] == "frontier"]
    assert (curve[0]["accuracy"], curve[-1]["accuracy"]) == (accuracy["small"], accuracy["big"])
    assert curve[-1]["cost"] == pytest.approx(9 / 8)
    deciles = [point for point in report.points if point["kind"] == "decile"]
    assert sum(point["n"] for point in deciles) == 4000
    mean = sum(point["n"] * point["realised"] for point in deciles) / 4000
    assert mean == pytest.approx(accuracy["big"] - accuracy["small"])
    foretold = [point["foretold"] for point in deciles]
    assert foretold == sorted(foretold, reverse=True)
    assert report.summary["decile_apart"] < 0.06


def test_evidence_that_was_refused_is_told_in_the_place_of_gains(
    folder: Path, file: ProfileFile
) -> None:
    blind = confidence_evidence("p", sample(2000, 1, blind=True), sample(2000, 2, blind=True))
    manifest = with_confidence(load_manifest(folder), {})
    variants = tuple(
        replace(variant, escalations=blind[variant.name].escalations)
        for variant in manifest.variants
    )
    report = run_cascade(folder, replace(manifest, variants=variants), file, "p")
    (refused,) = [point for point in report.points if point["kind"] == "refused"]
    assert "less confident half" in refused["reason"]
    assert "decile_apart" not in report.summary


def test_a_pair_that_is_not_there_and_evidence_of_one_variant_are_told(
    folder: Path, manifest: Manifest, file: ProfileFile
) -> None:
    with pytest.raises(ValueError, match="small and big; got big and small"):
        run_cascade(folder, manifest, file, "p", pair=("big", "small"))
    one = tuple(replace(v, calibrations=()) if v.name == "big" else v for v in manifest.variants)
    with pytest.raises(ValueError, match=r"of 1.*orchid models evaluate"):
        run_cascade(folder, replace(manifest, variants=one), file, "p")


def test_the_command_writes_and_draws_the_report(
    folder: Path, file: ProfileFile, tmp_path: Path
) -> None:
    given = ["--model", folder.name, "--repository", str(folder.parent)]
    target, picture = tmp_path / "cascade.json", tmp_path / "cascade.png"
    done = RUNNER.invoke(
        app, ["bench", "cascade", *given, "--json", str(target), "--plot", str(picture)]
    )
    assert done.exit_code == 0, done.output
    assert "cascade@0.3.accuracy" in done.output
    assert picture.read_bytes().startswith(b"\x89PNG")
    report = read_report(target)
    again = tmp_path / "again.png"
    plot_cascade(report, again)
    assert again.exists()
    with pytest.raises(ValueError, match="report of cascades"):
        plot_cascade(replace(report, bench="sweep"), again)


def test_the_command_says_what_is_missing(folder: Path, file: ProfileFile) -> None:
    given = ["bench", "cascade", "--model", folder.name, "--repository", str(folder.parent)]
    done = RUNNER.invoke(app, [*given, "--population", "tweets"])
    assert (done.exit_code, "orchid models evaluate" in done.output) == (1, True)
    done = RUNNER.invoke(app, [*given, "--first", "small"])
    assert (done.exit_code, "--first and --to together" in done.output) == (1, True)
    recorded_path(folder, "p").unlink()
    done = RUNNER.invoke(app, given)
    assert (done.exit_code, "recorded answers" in done.output) == (1, True)
    profile_path(folder, MACHINE).unlink()
    done = RUNNER.invoke(app, given)
    assert (done.exit_code, "orchid profile" in done.output) == (1, True)
