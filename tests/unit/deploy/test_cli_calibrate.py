"""Stock ONNX classifiers of three classes: imported, calibrated, and ready for cascades."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer, models, pre_tokenizers
from typer.testing import CliRunner

from deploy.cli import app
from worker.models.manifest import load_manifest

RUNNER = CliRunner(env={"COLUMNS": "200"})
LABELS = ("sports", "arts", "science")
WORDS = 30

Table = NDArray[np.float32]


def write_graph(path: Path, table: Table) -> None:
    """A padded graph whose logits are the sum of the words' rows of a table [words, classes]."""
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["rows"]),
        helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["mask", "last"], ["wide"]),
        helper.make_node("Mul", ["rows", "wide"], ["kept"]),
        helper.make_node("ReduceSum", ["kept", "second"], ["logits"], keepdims=0),
    ]
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "seq"])
        for name in ("input_ids", "attention_mask")
    ]
    graph = helper.make_graph(
        nodes,
        "words",
        inputs,
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", len(LABELS)])],
        [
            numpy_helper.from_array(table, "table"),
            numpy_helper.from_array(np.array([2], np.int64), "last"),
            numpy_helper.from_array(np.array([1], np.int64), "second"),
        ],
    )
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10),
        str(path),
    )


@pytest.fixture
def topics(tmp_path: Path) -> tuple[Path, Path]:
    """A repository with the imported model, and labelled token ids.

    Texts are words drawn by their label, so the sum of the words' log-probabilities is the true
    posterior; the small graph knows these by noise and tells three times too much.
    """
    random = np.random.default_rng(4)
    chances = random.dirichlet(np.full(WORDS, 0.8), len(LABELS)) + 1e-3
    chances /= chances.sum(axis=1, keepdims=True)
    truth = np.log(chances.T).astype(np.float32)
    noisy = truth + random.normal(0.0, 0.5, truth.shape).astype(np.float32)
    source = tmp_path / "topics"
    source.mkdir()
    write_graph(source / "large.onnx", truth)
    write_graph(source / "small.onnx", np.float32(3.0) * noisy)
    words = {f"w{number}": number for number in range(WORDS)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(source / "tokenizer.json"))
    lines = []
    for _ in range(5000):
        label = int(random.integers(len(LABELS)))
        ids = random.choice(WORDS, 4, p=chances[label])
        lines.append(json.dumps({"token_ids": ids.tolist(), "label": LABELS[label]}))
    file = tmp_path / "held-out.jsonl"
    file.write_text("\n".join(lines))
    repository = tmp_path / "repository"
    named = [part for label in LABELS for part in ("--label", label)]
    given = ["--max-tokens", "64", "--repository", str(repository), *named]
    done = RUNNER.invoke(app, ["models", "import", str(source), *given])
    assert done.exit_code == 0, done.output
    return repository, file


def test_a_stock_classifier_is_calibrated_from_labelled_token_ids(
    topics: tuple[Path, Path],
) -> None:
    repository, file = topics
    given = ["profile", "topics", "--calibrate", str(file), "--repository", str(repository)]
    done = RUNNER.invoke(app, given)
    assert done.exit_code == 0, done.output
    large, small = load_manifest(repository / "topics").variants
    assert (large.name, small.name) == ("large", "small")
    true, told = large.calibration("held-out"), small.calibration("held-out")
    assert true is not None and told is not None
    assert true.temperature == pytest.approx(1.0, abs=0.15)
    assert told.temperature > 2.0
    assert max(true.error, told.error) < 0.03
    evidence = small.evidence("held-out")
    assert evidence is not None
    assert evidence.n == 5000
    (table,) = small.escalations
    assert (table.to, table.refused) == ("large", "")
    assert table.gains[0] > max(0.05, table.gains[-1])
    assert large.escalations == ()
