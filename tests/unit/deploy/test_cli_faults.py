"""What a person types wrong ends in one line, never in a traceback."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from deploy.cli import app
from worker.models.synthetic import build_synthetic
from worker.models.synthetic_generator import build_tiny_generator

RUNNER = CliRunner(env={"COLUMNS": "300"})


def run(*arguments: object) -> tuple[int, str]:
    result = RUNNER.invoke(app, [str(argument) for argument in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.exit_code, result.output


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    build_synthetic(root)
    return root


@pytest.mark.parametrize("detach", [(), ("--detach",)])
def test_a_state_directory_that_cannot_be_made(
    tmp_path: Path, repository: Path, detach: tuple[str, ...]
) -> None:
    (tmp_path / "file").write_text("")
    state = tmp_path / "file" / "state"
    code, output = run("up", "--state", state, "--repository", repository, "--workers", 1, *detach)
    assert code == 1
    assert f"cannot keep state in {state}: Not a directory" in output


@pytest.mark.parametrize(
    "command", [("status",), ("infer", "tiny", "good"), ("models", "load", "tiny")]
)
def test_a_state_directory_without_a_cluster(tmp_path: Path, command: tuple[str, ...]) -> None:
    code, output = run(*command, "--state", tmp_path)
    assert (code, f"no cluster runs from {tmp_path}" in output) == (1, True)


@pytest.mark.parametrize(
    "command",
    [
        ("status",),
        ("infer", "tiny", "good"),
        ("generate", "tiny", "good"),
        ("models", "load", "tiny"),
        ("models", "unload", "tiny"),
    ],
)
def test_an_address_where_nobody_listens(command: tuple[str, ...]) -> None:
    code, output = run(*command, "--address", "127.0.0.1:1")
    assert code == 1
    assert "error: nothing serves on 127.0.0.1:1\n" in output
    assert "remedy: " in output


@pytest.mark.parametrize(
    ("command", "named"),
    [
        (("infer", "tiny", "good", "\udcff\udcfe"), "texts 2"),
        (("infer", "\udcff", "good"), "model"),
        (("generate", "tiny", "\udcff"), "prompt"),
        (("generate", "\udcff", "good"), "model"),
        (("generate", "tiny", "good", "--stop", "a", "--stop", "\udcff"), "stop 2"),
        (("generate", "tiny", "good", "--class", "\udcff"), "request-class"),
        (("chat", "tiny", "--system", "\udcff"), "system"),
        (("status", "--address", "\udcff"), "address"),
        (("models", "load", "\udcff"), "name"),
    ],
)
def test_what_is_not_utf8_is_named(command: tuple[str, ...], named: str) -> None:
    code, output = run(*command)
    assert (code, f"{named} is not UTF-8" in output) == (2, True), output


def test_a_cluster_of_nobody(tmp_path: Path, repository: Path) -> None:
    given = ("--repository", repository, "--state", tmp_path / "state")
    code, output = run("up", "--workers", 0, *given)
    assert (code, "no worker is asked for that serves a model" in output) == (1, True), output


def test_a_rate_that_is_no_number(repository: Path) -> None:
    given = ("--model", "tiny", "--repository", repository, "--address", "127.0.0.1:1")
    code, output = run("bench", "load", "--rate", "nan", *given)
    assert code == 1
    assert "nan" in output and "orchid status" not in output


@pytest.mark.parametrize(
    "content", [b"no json", b"\xff\xfe", b"[]", b"{}", json.dumps({"schema": 1}).encode()]
)
def test_a_plot_of_something_else(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "result.json"
    path.write_bytes(content)
    code, output = run("bench", "plot", path)
    assert (code, f"{path} is no result of a bench" in output) == (1, True)


@pytest.mark.parametrize("factors", ["much", "1.5,0", ""])
def test_levels_of_overload_under_loads_that_are_none(factors: str) -> None:
    code, output = run("bench", "ladder", "--factors", factors)
    assert (code, "--factors takes numbers" in output) == (1, True)


def test_decoding_is_measured_on_a_language_model_that_is_built(
    tmp_path: Path, repository: Path
) -> None:
    code, output = run("bench", "decode", "--repository", tmp_path)
    assert code == 1
    assert "orchid models build --language-model" in output
    code, output = run("bench", "decode", "--model", "tiny", "--repository", repository)
    assert (code, "tiny generates no text" in output) == (1, True)
    options = ("--model", "tiny", "--peers", "--repository", repository)
    code, output = run("bench", "decode", *options)
    assert (code, "peers are compared on smollm2-135m" in output) == (1, True)


def test_a_language_model_is_evaluated_on_its_own_population(tmp_path: Path) -> None:
    build_tiny_generator(tmp_path)
    options = ("--population", "tweets", "--repository", tmp_path)
    code, output = run("models", "evaluate", "tiny-chat", *options)
    assert (code, "expected population austen-novels" in output) == (1, True)


@pytest.mark.parametrize(
    "command",
    [
        ("infer", "tiny", "good", "--deadline-ms", 2**63),
        ("generate", "tiny", "good", "--deadline-ms", 2**63),
        ("generate", "tiny", "good", "--max-tokens", 2**32),
        ("generate", "tiny", "good", "--top-k", 2**32),
        ("generate", "tiny", "good", "--seed", 2**64),
        ("generate", "tiny", "good", "--first-token-target-ms", 2**63),
        ("generate", "tiny", "good", "--token-target-ms", 2**63),
        ("chat", "tiny", "--max-tokens", 2**32),
    ],
)
def test_a_number_that_no_message_holds(command: tuple[object, ...]) -> None:
    code, output = run(*command, "--address", "127.0.0.1:1")
    assert (code, str(command[-2]) in output) == (2, True)


def test_a_plan_from_a_file_that_is_no_profile(tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text("no profile")
    code, output = run("plan", "--rate", 1, "--deadline", 100, "--from", other)
    assert (code, "is no result of a bench" in output) == (1, True)
