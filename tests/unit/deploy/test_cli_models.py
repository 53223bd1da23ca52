"""`orchid models` on small repositories."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from deploy.cli import app as whole_app
from deploy.cli.models import app
from tests.unit.worker.models.gguf_files import (
    metadata_of,
    tensors_of,
    tiny_gguf_decoder,
    write_gguf,
)
from worker.models.calibration import Calibration, Escalation
from worker.models.manifest import load_manifest, save_manifest
from worker.models.synthetic import build_synthetic, build_tensor_model, tiny_population

RUNNER = CliRunner(env={"COLUMNS": "200"})


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    build_synthetic(folder)
    build_tensor_model(folder)
    return folder


def run(*arguments: object) -> tuple[int, str]:
    result = RUNNER.invoke(app, [str(argument) for argument in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.exit_code, result.output


def test_list_shows_every_model(repository: Path) -> None:
    code, output = run("list", "--repository", repository)
    assert code == 0
    assert "tiny" in output
    assert "adder" in output
    assert load_manifest(repository / "tiny").digest[7:19] in output


def test_the_repository_variable_is_honoured(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORCHID_REPOSITORY", str(repository))
    assert run("verify")[0] == 0


def test_an_empty_repository_says_what_to_do(tmp_path: Path) -> None:
    for command in ("list", "verify"):
        code, output = run(command, "--repository", tmp_path)
        assert code == 1
        assert "orchid models build" in output


def test_show_tells_variants_and_evidence(repository: Path) -> None:
    code, output = run("show", "tiny", "--repository", repository)
    assert code == 0
    assert load_manifest(repository / "tiny").digest in output
    assert "tiny-words" in output
    code, output = run("show", "tiny", "--json", "--repository", repository)
    assert json.loads(output)["name"] == "tiny"


def test_show_names_the_models_there_are(repository: Path) -> None:
    code, output = run("show", "huge", "--repository", repository)
    assert code == 1
    assert "adder, tiny" in output


def test_verify_exits_with_1_on_a_changed_file(repository: Path) -> None:
    assert run("verify", "tiny", "--repository", repository)[0] == 0
    (repository / "tiny" / "tiny-a.onnx").write_bytes(b"x")
    code, output = run("verify", "--repository", repository)
    assert code == 1
    assert "tiny-a.onnx" in output
    assert "ok adder" in output


def test_import_brings_a_graph_in(repository: Path, tmp_path: Path) -> None:
    source = build_tensor_model(tmp_path / "source") / "graph.onnx"
    code, output = run("import", source, "--name", "sum", "--repository", repository)
    assert code == 0
    assert load_manifest(repository / "sum").digest in output


def test_faults_are_told_with_a_remedy(repository: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    code, output = run("build", tmp_path / "empty", "--repository", repository)
    assert code == 1
    assert "config.json" in output
    assert "remedy" in output


def test_options_of_the_other_kind_of_build_are_refused(repository: Path, tmp_path: Path) -> None:
    code, output = run("build", "--name", "x", "--repository", repository)
    assert (code, "--name only with a checkpoint folder" in output) == (1, True)
    code, output = run("build", tmp_path, "--small", "--repository", repository)
    assert (code, "--small only with the default model" in output) == (1, True)


def test_a_gguf_file_becomes_an_entry(repository: Path, tmp_path: Path) -> None:
    decoder = tiny_gguf_decoder()
    write_gguf(tmp_path / "chat.gguf", metadata_of(decoder), tensors_of(decoder))
    code, output = run("build", tmp_path / "chat.gguf", "--int8", "--repository", repository)
    assert (code, "text-generation" in output) == (0, True)
    names = [variant.name for variant in load_manifest(repository / "chat").variants]
    assert names == ["chat-fp32", "chat-int8", "chat-q4"]
    code, output = run("build", tmp_path / "chat.gguf", "--label", "x", "--repository", repository)
    assert (code, "--label only with a classifier" in output) == (1, True)
    (tmp_path / "chat.gguf").write_bytes(b"GGUF")
    code, output = run("build", tmp_path / "chat.gguf", "--repository", repository)
    assert (code, "a whole GGUF file" in output) == (1, True)


def test_evaluate_measures_labelled_lines_and_shows_them(repository: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine.tsv"
    file.write_text("positive\ta good film\nnegative\ta bad film\n")
    code, output = run(
        "evaluate", "tiny", "--labelled", file, "--variant", "tiny-a", "--repository", repository
    )
    assert code == 0
    assert "mine" in output
    first, second = load_manifest(repository / "tiny").variants
    assert first.evidence("mine") is not None
    assert second.evidence("mine") is None


def test_evaluate_refuses_rated_sets_for_other_labels(repository: Path) -> None:
    code, output = run("evaluate", "adder", "--repository", repository)
    assert code == 1
    assert "--labelled" in output


def labelled(path: Path, n: int) -> Path:
    """JSON lines of the tiny language, as many as asked for."""
    lines = [
        json.dumps({"text": text, "label": label}) for text, label in tiny_population(n, seed=7)
    ]
    path.write_text("\n".join(lines))
    return path


def calibrated(model: str, repository: Path, file: Path) -> tuple[int, str]:
    result = RUNNER.invoke(
        whole_app,
        ["profile", model, "--calibrate", str(file), "--repository", str(repository)],
    )
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.exit_code, result.output


def test_show_says_that_cascades_are_off_until_confidence_is_measured(repository: Path) -> None:
    code, output = run("show", "tiny", "--repository", repository)
    assert code == 0
    assert "cascades off: confidence is not measured" in output
    assert "orchid models evaluate tiny" in output


def test_calibrate_measures_confidence_and_show_tells_it(repository: Path, tmp_path: Path) -> None:
    file = labelled(tmp_path / "held-out.jsonl", 1500)
    code, output = calibrated("tiny", repository, file)
    assert code == 0
    second = load_manifest(repository / "tiny").variants[1]
    calibration = second.calibration("held-out")
    assert calibration is not None
    assert f"{calibration.error:.3f}" in output
    code, output = run("show", "tiny", "--repository", repository)
    assert f"{calibration.temperature:.2f}" in output
    assert "error is how far they are from the truth" in " ".join(output.split())
    assert "cascades off for tiny-words: confidence is not measured" in output
    assert "held-out: none from tiny-b: calibration error" in output


def test_show_says_why_a_population_has_no_cascades(repository: Path) -> None:
    manifest = load_manifest(repository / "tiny")
    first, second = manifest.variants
    sure = Calibration("tiny-words", 1.5, 0.1, 600, 700)
    reason = "calibration error 0.100 on 700 items, at most 0.020 serves"
    second = replace(
        second,
        calibrations=(sure,),
        escalations=(Escalation("tiny-words", "tiny-a", refused=reason),),
    )
    first = replace(first, calibrations=(sure,))
    save_manifest(replace(manifest, variants=(first, second)), repository / "tiny")
    code, output = run("show", "tiny", "--repository", repository)
    assert code == 0
    assert "cascades off for tiny-words:" in output
    assert f"tiny-words: none from tiny-b: {reason}" in output


def test_calibrate_refuses_too_few_items_before_it_runs(repository: Path, tmp_path: Path) -> None:
    before = load_manifest(repository / "tiny")
    code, output = calibrated("tiny", repository, labelled(tmp_path / "few.jsonl", 100))
    assert code == 1
    assert "at least 500 of both" in output
    assert "remedy" in output
    assert load_manifest(repository / "tiny") == before


def test_calibrate_is_for_classifiers(repository: Path, tmp_path: Path) -> None:
    code, output = calibrated("adder", repository, labelled(tmp_path / "few.jsonl", 10))
    assert code == 1
    assert "expected a text classifier in adder; got task tensor" in output
    assert "--label" in output
