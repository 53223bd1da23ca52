"""The emitted graphs against the reference implementation, and batches against their rows."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.golden.checkpoints import LENGTHS, VOCABULARY, sequences
from tests.unit.worker.models.encoder_builds import (
    FAMILIES,
    GOLDEN,
    HEADS,
    golden_encoder,
    padded_inputs,
    write_encoder,
)
from worker.engine import Session
from worker.models.architecture import EncoderConfig, Family
from worker.models.emitter import Precision
from worker.models.evaluate import ragged_feeds
from worker.models.manifest import Layout
from worker.models.shapes import MINILM_SIZES, random_encoder, write_layouts

# A distance bias, and sizes that fill 8-bit blocks.
SIZES = EncoderConfig("mpnet", 2, 64, 4, 128, VOCABULARY, max(LENGTHS), 1e-5)
ROWS = st.lists(
    st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=30), min_size=1, max_size=5
)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize("layout", ["ragged", "padded"])
def test_graphs_equal_the_reference(
    tmp_path: Path, family: Family, kind: str, layout: Layout
) -> None:
    session = Session(write_encoder(tmp_path, golden_encoder(family, kind), layout))
    rows = sequences(family)
    feeds = ragged_feeds(rows) if layout == "ragged" else padded_inputs(rows)
    (answer,) = session.run(feeds).values()
    np.testing.assert_allclose(answer, GOLDEN[family][kind], atol=1e-5, rtol=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_padded_graphs_use_standard_operators_only(tmp_path: Path, family: Family) -> None:
    path = write_encoder(tmp_path, golden_encoder(family, "mean"), "padded")
    model = onnx.load(str(path))
    assert {opset.domain for opset in model.opset_import} == {""}
    onnx.checker.check_model(model, full_check=True)


def test_a_padded_graph_runs_in_the_plain_wheel(tmp_path: Path) -> None:
    path = write_encoder(tmp_path, golden_encoder("mpnet", "mean"), "padded")
    np.savez(tmp_path / "feeds.npz", **padded_inputs(sequences("mpnet")))
    program = (
        "import sys, numpy, onnxruntime\n"
        "session = onnxruntime.InferenceSession(sys.argv[1])\n"
        "feeds = dict(numpy.load(sys.argv[2]))\n"
        "numpy.save(sys.argv[3], session.run(None, feeds)[0])\n"
    )
    files = [path, tmp_path / "feeds.npz", tmp_path / "answer.npy"]
    subprocess.run([sys.executable, "-c", program, *map(str, files)], check=True, timeout=60)
    answer = np.load(tmp_path / "answer.npy")
    np.testing.assert_allclose(answer, GOLDEN["mpnet"]["mean"], atol=1e-5, rtol=0)


@pytest.fixture(scope="module", params=["fp32", "int8"])
def session(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Session:
    folder = tmp_path_factory.mktemp(request.param)
    return Session(write_encoder(folder, random_encoder(SIZES), "ragged", request.param))


@settings(max_examples=40, deadline=None)
@given(rows=ROWS)
def test_a_batch_equals_its_rows(session: Session, rows: list[list[int]]) -> None:
    together = session.run(ragged_feeds(rows))["logits"]
    alone = np.concatenate([session.run(ragged_feeds([row]))["logits"] for row in rows])
    np.testing.assert_allclose(together, alone, atol=1e-5, rtol=0)


def test_int8_stays_near_fp32(tmp_path: Path) -> None:
    answers = {}
    precisions: tuple[Precision, ...] = ("fp32", "int8")
    for precision in precisions:
        folder = tmp_path / precision
        folder.mkdir()
        graph = write_encoder(folder, random_encoder(SIZES), "ragged", precision)
        rows = [[token % VOCABULARY for token in row] for row in sequences("mpnet")]
        answers[precision] = Session(graph).run(ragged_feeds(rows))["logits"]
    difference = np.abs(answers["fp32"] - answers["int8"]).max()
    assert 0 < difference < 0.05 * np.abs(answers["fp32"]).max()


def test_both_layouts_of_a_random_encoder_agree(tmp_path: Path) -> None:
    paths = write_layouts(tmp_path, random_encoder(replace(MINILM_SIZES, layers=1), seed=4))
    rows = [[token % 2048 for token in row] for row in sequences("bert")]
    ragged = Session(paths["ragged"]).run(ragged_feeds(rows))["logits"]
    padded = Session(paths["padded"]).run(padded_inputs(rows))["logits"]
    np.testing.assert_allclose(ragged, padded, atol=2e-5, rtol=0)
