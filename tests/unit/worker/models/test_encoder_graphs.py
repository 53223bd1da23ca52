"""The emitted graphs against the reference implementation, and batches against their rows."""

from __future__ import annotations

import subprocess
import sys
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
from worker.models.architecture import (
    Affine,
    Embeddings,
    Encoder,
    EncoderConfig,
    Family,
    Head,
    Layer,
    Norm,
)
from worker.models.emitter import Precision
from worker.models.evaluate import ragged_feeds
from worker.models.manifest import Layout

HIDDEN, WIDE = 64, 128
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
    return Session(write_encoder(folder, random_encoder(), "ragged", request.param))


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
        graph = write_encoder(folder, random_encoder(), "ragged", precision)
        rows = [[token % VOCABULARY for token in row] for row in sequences("mpnet")]
        answers[precision] = Session(graph).run(ragged_feeds(rows))["logits"]
    difference = np.abs(answers["fp32"] - answers["int8"]).max()
    assert 0 < difference < 0.05 * np.abs(answers["fp32"]).max()


def random_encoder() -> Encoder:
    """Return an encoder whose sizes are multiples of the 8-bit block, with a distance bias."""
    random = np.random.default_rng(5)

    def affine(inputs: int, outputs: int) -> Affine:
        weight = random.normal(0, 0.15, (inputs, outputs)).astype(np.float32)
        return Affine(weight, random.normal(0, 0.1, outputs).astype(np.float32))

    def norm() -> Norm:
        return Norm(np.ones(HIDDEN, np.float32), np.zeros(HIDDEN, np.float32))

    positions = max(LENGTHS)
    layers = tuple(
        Layer(
            qkv=affine(HIDDEN, 3 * HIDDEN),
            attended=affine(HIDDEN, HIDDEN),
            attended_norm=norm(),
            up=affine(HIDDEN, WIDE),
            down=affine(WIDE, HIDDEN),
            output_norm=norm(),
        )
        for _ in range(2)
    )
    embeddings = Embeddings(
        words=random.normal(0, 1, (VOCABULARY, HIDDEN)).astype(np.float32),
        positions=random.normal(0, 1, (positions, HIDDEN)).astype(np.float32),
        norm=norm(),
        distances=random.normal(0, 1, (4, 2 * positions - 1)).astype(np.float32),
    )
    config = EncoderConfig("mpnet", 2, HIDDEN, 4, WIDE, VOCABULARY, positions, 1e-5)
    return Encoder(config, embeddings, layers, Head("mean", output=affine(HIDDEN, 3)))
