"""The quality of a language model that was just built: measured once, told, and kept."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from deploy.cli import model_builds, model_evaluate
from deploy.cli.model_evaluate import evaluate_built
from deploy.cli.model_progress import model_progress
from deploy.cli.models import app
from worker.models.errors import PackageError
from worker.models.generator import GeneratorReport
from worker.models.manifest import Manifest, load_manifest
from worker.models.novels import POPULATION
from worker.models.perplexity import BUILT_WINDOWS
from worker.models.synthetic_generator import build_tiny_generator

TEXTS = tuple(f"the inner theatre {number}, in the rain; " * 40 for number in range(3))
SCORED = 96


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return build_tiny_generator(tmp_path, precisions=("fp32", "q4"), context=128)


def built(folder: Path) -> tuple[Manifest, str]:
    """What is measured after a build, and what is said meanwhile."""
    console = Console(file=io.StringIO(), width=200)
    with model_progress(console) as progress:
        manifest = evaluate_built(folder, load_manifest(folder), progress)
    assert isinstance(console.file, io.StringIO)
    return manifest, console.file.getvalue()


def test_each_variant_is_measured_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_evaluate, "fetch_novels", lambda root, progress: TEXTS)
    manifest, said = built(folder)
    assert f"tiny-chat on {POPULATION}" in said
    for variant in manifest.variants:
        evidence = variant.evidence(POPULATION)
        assert evidence is not None
        assert evidence.n == BUILT_WINDOWS * SCORED
    monkeypatch.delattr(model_evaluate, "fetch_novels")
    again, said = built(folder)
    assert again == manifest
    assert not said.strip()


def test_a_build_again_keeps_what_was_measured_of_the_same_files(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_evaluate, "fetch_novels", lambda root, progress: TEXTS)
    manifest, _ = built(folder)
    build_tiny_generator(folder.parent, precisions=("fp32", "q4"), context=128)
    assert load_manifest(folder).variants == manifest.variants
    # Another seed is another model: nothing that was measured holds for it.
    build_tiny_generator(folder.parent, precisions=("fp32", "q4"), context=128, seed=2)
    assert not any(variant.quality for variant in load_manifest(folder).variants)


def test_without_the_text_a_model_is_built_all_the_same(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(root: Path, progress: object) -> tuple[str, ...]:
        raise PackageError("r-cran-janeaustenr from the distribution", "no network", "try later")

    monkeypatch.setattr(model_evaluate, "fetch_novels", unreachable)
    before = load_manifest(folder)
    manifest, said = built(folder)
    assert manifest == before == load_manifest(folder)
    assert "no text to measure quality on" in said and "no network" in said


@pytest.mark.parametrize("evidence", [True, False])
def test_a_build_measures_unless_told_not_to(
    folder: Path, monkeypatch: pytest.MonkeyPatch, evidence: bool
) -> None:
    report = GeneratorReport(folder, load_manifest(folder), ())
    monkeypatch.setattr(model_builds, "build_smollm2", lambda *given: report)
    monkeypatch.setattr(model_evaluate, "fetch_novels", lambda root, progress: TEXTS)
    console = Console(file=io.StringIO(), width=200)
    model_builds.build_language_model(folder.parent, evidence, console)
    assert isinstance(console.file, io.StringIO)
    said = console.file.getvalue()
    assert ("kl-divergence" in said) == evidence
    assert ("quality is not measured" in said) != evidence
    assert "made: nothing" in said


def test_list_tells_a_perplexity_and_build_who_can_leave_it_out(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = CliRunner(env={"COLUMNS": "200"})
    assert "ppl" not in runner.invoke(app, ["list", "--repository", str(folder.parent)]).output
    monkeypatch.setattr(model_evaluate, "fetch_novels", lambda root, progress: TEXTS)
    built(folder)
    assert "ppl " in runner.invoke(app, ["list", "--repository", str(folder.parent)]).output
    refused = runner.invoke(app, ["build", "--no-evidence", "--repository", str(folder.parent)])
    assert refused.exit_code == 1
    assert "--no-evidence only with --language-model" in refused.output
