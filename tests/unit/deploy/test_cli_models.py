"""`orchid models` on small repositories."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from deploy.cli.models import app
from tests.unit.worker.models.gguf_files import (
    metadata_of,
    tensors_of,
    tiny_gguf_decoder,
    write_gguf,
)
from worker.models.manifest import load_manifest
from worker.models.synthetic import build_synthetic, build_tensor_model

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
