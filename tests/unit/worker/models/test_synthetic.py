"""The synthetic models: right, sensitive to every token and position, honest in their evidence."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from worker.engine import RunToken, Session
from worker.errors import RunTerminated
from worker.models.evaluate import ragged_feeds
from worker.models.manifest import load_manifest
from worker.models.synthetic import (
    ELEMENT_TYPES,
    HEAVY_WORD,
    Pace,
    build_identity,
    build_paced,
    build_padded,
    build_slow,
    build_synthetic,
    build_tensor_model,
    reference_logits,
    tiny_population,
    tiny_tokenizer,
    tiny_weights,
    vocabulary,
)

WEIGHTS = tiny_weights(seed=1, layers=4)
TOKENS = st.lists(st.integers(0, len(vocabulary()) - 1), min_size=1, max_size=40)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("repository")


@pytest.fixture(scope="module")
def tiny(repository: Path) -> Session:
    return Session(build_synthetic(repository) / "tiny-a.onnx")


@settings(max_examples=60, deadline=None)
@given(rows=st.lists(TOKENS, min_size=1, max_size=6))
def test_any_batch_equals_the_reference_of_its_rows(tiny: Session, rows: list[list[int]]) -> None:
    logits = tiny.run(ragged_feeds(rows))["logits"]
    expected = [reference_logits(WEIGHTS, row) for row in rows]
    np.testing.assert_allclose(logits, expected, atol=1e-5, rtol=0)


def test_every_token_and_position_matters() -> None:
    sequence = [2, 5, 60, 33, 41, 3]
    base = reference_logits(WEIGHTS, sequence)
    for place in range(len(sequence)):
        other = [*sequence[:place], 17, *sequence[place + 1 :]]
        assert np.abs(reference_logits(WEIGHTS, other) - base).max() > 1e-4
    swapped = [2, 60, 5, 33, 41, 3]
    assert np.abs(reference_logits(WEIGHTS, swapped) - base).max() > 1e-4


def test_the_padded_graph_ignores_padding(repository: Path) -> None:
    session = Session(build_padded(repository) / "tiny-a.onnx")
    rows = [[2, 5, 60, 3], [2, 7, 8, 9, 70, 3]]
    ids = np.zeros((2, 9), np.int64)
    mask = np.zeros_like(ids)
    for index, row in enumerate(rows):
        ids[index, : len(row)], mask[index, : len(row)] = row, 1
    logits = session.run({"input_ids": ids, "attention_mask": mask})["logits"]
    expected = [reference_logits(WEIGHTS, row) for row in rows]
    np.testing.assert_allclose(logits, expected, atol=1e-5, rtol=0)


def test_evidence_orders_the_variants_and_is_measured(repository: Path, tiny: Session) -> None:
    manifest = load_manifest(build_synthetic(repository))
    better, faster = manifest.variants
    assert better.quality[0].value > faster.quality[0].value + 0.1
    tokenizer = Tokenizer.from_file(str(repository / "tiny" / "tokenizers" / "words.json"))
    population = tiny_population()
    rows = [tokenizer.encode(text).ids for text, _ in population]
    guesses = tiny.run(ragged_feeds(rows))["logits"].argmax(axis=1)
    right = sum(int(g) == label for g, (_, label) in zip(guesses, population, strict=True))
    assert right / len(population) == better.quality[0].value


def test_paced_variants_answer_alike_and_have_the_quality_they_are_given(tmp_path: Path) -> None:
    paces = {"whole": Pace(50, per_token=3, per_heavy=40), "less": Pace(1)}
    qualities = {"whole": 0.92, "less": 0.86}
    folder = build_paced(tmp_path, "paced", paces, qualities, max_tokens=64)
    found = {each.name: each.quality[0].value for each in load_manifest(folder).variants}
    assert found == qualities
    heavy = vocabulary()[HEAVY_WORD]
    rows = [[2, heavy, heavy, 3], [2, 7, 3]]
    expected = [reference_logits(tiny_weights(seed=1, layers=1, max_tokens=64), r) for r in rows]
    for name in paces:
        session = Session(folder / f"{name}.onnx")
        logits = session.run(ragged_feeds(rows))["logits"]
        np.testing.assert_allclose(logits, expected, atol=1e-5, rtol=0)
    before = load_manifest(folder).digest
    build_paced(tmp_path, "paced", paces, qualities | {"less": 0.83}, max_tokens=64)
    assert load_manifest(folder).digest != before


def test_building_twice_gives_the_same_identity(tmp_path: Path) -> None:
    first = load_manifest(build_synthetic(tmp_path / "one")).digest
    assert load_manifest(build_synthetic(tmp_path / "two")).digest == first


def test_the_tokenizer_adds_specials_and_knows_unknown_words() -> None:
    encoding = tiny_tokenizer().encode("A Good zebra")
    assert encoding.tokens == ["[CLS]", "a", "good", "[UNK]", "[SEP]"]


def test_the_tensor_model_adds(repository: Path) -> None:
    session = Session(build_tensor_model(repository) / "graph.onnx")
    a, b = np.array([1, 2.5], np.float32), np.array([3, -1], np.float32)
    np.testing.assert_array_equal(session.run({"a": a, "b": b})["sum"], a + b)


def test_identity_returns_every_element_type(repository: Path) -> None:
    session = Session(build_identity(repository) / "graph.onnx")
    feeds = {
        f"in_{kind}": np.array(["a", "é"], object)
        if kind == "string"
        else np.array([0, 1], np.dtype(kind))
        for kind in ELEMENT_TYPES
    }
    answer = session.run(feeds)
    for kind in ELEMENT_TYPES:
        assert answer[f"out_{kind}"].tolist() == feeds[f"in_{kind}"].tolist()


def test_the_slow_model_can_be_terminated(repository: Path) -> None:
    session = Session(build_slow(repository, ms=60_000) / "graph.onnx")
    token = RunToken()
    timer = threading.Timer(0.05, token.terminate)
    timer.start()
    with pytest.raises(RunTerminated):
        session.run({"x": np.ones(3, np.float32)}, token=token)
    timer.join()


def test_busy_work_does_not_change_the_answer(tmp_path: Path, tiny: Session) -> None:
    busy = Session(build_synthetic(tmp_path, busy={"tiny-a": 50}) / "tiny-a.onnx")
    feeds = ragged_feeds([[2, 5, 60, 3]])
    np.testing.assert_array_equal(busy.run(feeds)["logits"], tiny.run(feeds)["logits"])
