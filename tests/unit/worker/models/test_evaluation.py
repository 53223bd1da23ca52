"""Confidence evidence of whole models, through the engine: measured, recorded, kept, refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from worker.engine import Session
from worker.models.errors import CheckpointError
from worker.models.evaluation import Evaluation
from worker.models.manifest import load_manifest
from worker.models.populations import Population
from worker.models.progress import Report, Unit
from worker.models.recorded import read_recorded, recorded_path
from worker.models.synthetic import build_padded, build_synthetic, tiny_population, tiny_tokenizer


class Noted:
    """Progress that keeps its notes."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    @contextmanager
    def step(self, label: str, total: int, unit: Unit) -> Iterator[Report]:
        yield lambda done: None

    def note(self, text: str) -> None:
        self.notes.append(text)


def population(n: int, seed: int = 5, name: str = "words") -> Population:
    items = tiny_population(n, seed)
    return Population(
        name, tuple(text for text, _ in items), tuple(label for _, label in items), f"{n} {seed}"
    )


def evaluate(
    folder: Path, sample: Population, variants: tuple[str, ...] = (), noted: Noted | None = None
) -> None:
    def session(graph: Path) -> Session:
        return Session(graph, share_weights=False)

    Evaluation(folder, "engine", session, noted or Noted()).run(variants, [sample])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return build_synthetic(tmp_path)


def test_the_faster_variant_is_calibrated_and_its_answers_are_recorded(folder: Path) -> None:
    sample = population(1500)
    evaluate(folder, sample)
    better, faster = load_manifest(folder).variants
    half = sample.fitted_half()
    calibration = faster.calibration("words")
    assert calibration is not None
    assert (calibration.fitted_on, calibration.n) == (half.sum(), (~half).sum())
    assert [item.to for item in faster.escalations] == ["tiny-a"]
    assert better.escalations == ()
    tested = read_recorded(recorded_path(folder, "words"))
    fitted = read_recorded(recorded_path(folder, "words-validation"))
    assert set(tested.logits) == set(fitted.logits) == {"tiny-a", "tiny-b"}
    assert tested.labels.tolist() == np.array(sample.labels)[~half].tolist()
    words = tiny_tokenizer().encode_batch([sample.texts[i] for i in np.flatnonzero(half)])
    assert fitted.tokens.tolist() == [len(found.ids) for found in words]
    for variant in (better, faster):
        evidence = variant.evidence("words")
        assert evidence is not None
        right = [
            side.logits[variant.name].argmax(axis=1) == side.labels for side in (tested, fitted)
        ]
        assert np.concatenate(right).mean() == pytest.approx(evidence.value)


def test_items_to_fit_on_are_not_counted_as_accuracy(folder: Path) -> None:
    fitting = population(600, 6, "words-validation")
    evaluate(folder, replace(population(700), fitting=fitting))
    _, faster = load_manifest(folder).variants
    evidence, calibration = faster.evidence("words"), faster.calibration("words")
    assert evidence is not None and calibration is not None
    assert (evidence.n, calibration.n, calibration.fitted_on) == (700, 700, 600)
    assert faster.evidence("words-validation") is None


def test_too_few_items_are_noted_and_leave_the_accuracy(folder: Path) -> None:
    noted = Noted()
    evaluate(folder, population(900), noted=noted)
    _, faster = load_manifest(folder).variants
    assert faster.evidence("words") is not None
    assert faster.calibrations == ()
    (note,) = noted.notes
    assert "no confidence evidence on words" in note
    assert "at least 500" in note
    assert not recorded_path(folder, "words").exists()


def test_a_sample_leaves_evidence_on_more_items(folder: Path) -> None:
    sample = population(1500)
    evaluate(folder, sample)
    before = load_manifest(folder)
    evaluate(folder, sample.first(1200))
    assert load_manifest(folder) == before
    recorded = read_recorded(recorded_path(folder, "words"))
    assert len(recorded.labels) == before.variants[0].calibrations[0].n


def test_variants_are_compared_once_both_are_known(folder: Path) -> None:
    sample = population(1500)
    evaluate(folder, sample, ("tiny-b",))
    better, faster = load_manifest(folder).variants
    assert better.calibrations == ()
    assert len(faster.calibrations) == 1
    assert faster.escalations == ()
    evaluate(folder, sample, ("tiny-a",))
    assert [item.to for item in load_manifest(folder).variants[1].escalations] == ["tiny-a"]


def test_token_ids_are_measured_as_the_texts_they_stand_for(tmp_path: Path) -> None:
    texts = population(1200)
    encoded = tiny_tokenizer().encode_batch(list(texts.texts))
    ids = replace(
        texts, name="ids", texts=(), token_ids=tuple(tuple(found.ids) for found in encoded)
    )
    folder = build_padded(tmp_path)
    evaluate(folder, texts)
    evaluate(folder, ids)
    (variant,) = load_manifest(folder).variants
    one, other = variant.evidence("words"), variant.evidence("ids")
    assert one is not None and other is not None
    assert one == replace(other, population="words")
    for wrong in ((5000,), (-1, 2), (1,) * 600):
        bad = Population("bad", (), (0,), "bad", token_ids=(wrong,))
        with pytest.raises(CheckpointError, match="at most 512 token ids below"):
            evaluate(folder, bad)


def test_a_text_that_is_too_long_is_told_with_a_remedy(folder: Path) -> None:
    with pytest.raises(CheckpointError, match=r"fit tiny-a.*leave out the longest"):
        evaluate(folder, Population("long", ("good " * 600,), (1,), "long"))
