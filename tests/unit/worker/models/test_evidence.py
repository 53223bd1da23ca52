"""Evidence on further populations: right, resumable, and never in the place of more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from worker.engine import Session
from worker.models.calibration import Calibration, Escalation
from worker.models.errors import CheckpointError
from worker.models.evaluation import Evaluation
from worker.models.evidence import (
    FOLDER,
    ConfidenceEvidence,
    merged,
    record_evidence,
    with_confidence,
)
from worker.models.manifest import QualityEvidence, load_manifest, verify
from worker.models.populations import Population, labelled_population, rated_population
from worker.models.progress import Silent
from worker.models.quality import LabelledTexts
from worker.models.statistics import accuracy_evidence
from worker.models.synthetic import POPULATION, build_synthetic, build_tensor_model, tiny_population


class Interrupted(Exception):
    """What a test stops an evaluation with."""


class Counted:
    """Opens sessions that count their runs, and end after `runs_left` of them."""

    def __init__(self, runs_left: int = 10_000) -> None:
        self.runs = 0
        self.runs_left = runs_left

    def open(self, graph: Path) -> Counted:
        self._session = Session(graph, share_weights=False)
        return self

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        if self.runs == self.runs_left:
            raise Interrupted
        self.runs += 1
        return self._session.run(feeds)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return build_synthetic(tmp_path)


@pytest.fixture
def sentences() -> Population:
    """The very sentences that the manifest's evidence was measured on, with degrees."""
    items = tiny_population()
    return Population(
        "again",
        tuple(text for text, _ in items),
        tuple(label for _, label in items),
        "again",
        tuple(index % 4 == 0 for index in range(len(items))),
    )


def evaluate(folder: Path, counted: Counted, sentences: Population) -> None:
    Evaluation(folder, "engine", counted.open, Silent()).run((), [sentences])


def test_the_engine_finds_what_the_reference_found(folder: Path, sentences: Population) -> None:
    evaluate(folder, Counted(), sentences)
    for variant in load_manifest(folder).variants:
        reference, again = variant.evidence(POPULATION), variant.evidence("again")
        clear = variant.evidence("again-clear")
        assert reference is not None and again is not None and clear is not None
        assert again == replace(reference, population="again")
        assert clear.n == len(sentences.texts) / 4
        assert variant.quality[0] == reference, "routing goes by the first population"
    assert verify(folder) == []


def test_what_was_interrupted_goes_on_and_what_is_done_is_not_run(
    folder: Path, sentences: Population
) -> None:
    whole = Counted()
    evaluate(folder, whole, sentences)
    told = load_manifest(folder).variants
    other = build_synthetic(folder.parent / "other")
    broken = Counted(whole.runs - 3)
    with pytest.raises(Interrupted):
        evaluate(other, broken, sentences)
    rest = Counted()
    evaluate(other, rest, sentences)
    assert rest.runs < whole.runs
    assert load_manifest(other).variants == told
    looking = Counted()
    evaluate(other, looking, sentences)
    assert looking.runs == 0


def test_other_content_is_measured_again(folder: Path, sentences: Population) -> None:
    evaluate(folder, Counted(), sentences)
    counted = Counted()
    evaluate(folder, counted, replace(sentences, source="changed"))
    assert counted.runs > 0


def test_a_sample_does_not_replace_the_whole(folder: Path, sentences: Population) -> None:
    evaluate(folder, Counted(), sentences)
    before = load_manifest(folder)
    evaluate(folder, Counted(), sentences.first(40))
    assert load_manifest(folder) == before
    few = accuracy_evidence("fresh", 30, 40)
    record_evidence(folder, "tiny-a", [few])
    assert few in load_manifest(folder).variants[0].quality


def test_answers_that_were_kept_without_their_logits_are_measured_again(
    folder: Path, sentences: Population
) -> None:
    evaluate(folder, Counted(), sentences)
    told = load_manifest(folder)
    for lost in (folder / FOLDER).glob("tiny-b.*.npy"):
        lost.unlink()
    counted = Counted()
    evaluate(folder, counted, sentences)
    assert counted.runs > 0
    assert load_manifest(folder) == told


def test_a_sample_and_the_whole_are_one_measurement(folder: Path, sentences: Population) -> None:
    whole = Counted()
    evaluate(folder, whole, sentences)
    other = build_synthetic(folder.parent / "other")
    evaluate(other, Counted(), sentences.first(256))
    rest = Counted()
    evaluate(other, rest, sentences)
    assert 0 < rest.runs < whole.runs
    assert load_manifest(other) == load_manifest(folder)
    looking = Counted()
    evaluate(other, looking, sentences.first(256))
    assert looking.runs == 0


def test_unknown_variants_and_populations_are_named(folder: Path, sentences: Population) -> None:
    evaluation = Evaluation(folder, "engine", Counted().open, Silent())
    with pytest.raises(CheckpointError, match="tiny-a, tiny-b"):
        evaluation.run(["tiny-z"], [sentences])
    with pytest.raises(CheckpointError, match=r"tweets.*got 'gossip'"):
        rated_population("gossip", None)  # type: ignore[arg-type]


def test_only_classifiers_are_evaluated(tmp_path: Path, sentences: Population) -> None:
    folder = build_tensor_model(tmp_path)
    with pytest.raises(CheckpointError, match="a classifier"):
        Evaluation(folder, "engine", Counted().open, Silent()).run((), [sentences])


def test_a_labelled_file_is_a_population_by_its_content() -> None:
    one = labelled_population(LabelledTexts("mine", ("a", "b"), (0, 1)))
    assert one == labelled_population(LabelledTexts("mine", ("a", "b"), (0, 1)))
    assert one.source != labelled_population(LabelledTexts("mine", ("a", "b"), (1, 1))).source


def test_new_evidence_stands_where_the_old_stood() -> None:
    def evidence(population: str, value: float) -> QualityEvidence:
        return QualityEvidence(population, "accuracy", value, 10, 0.0, 1.0)

    old = (evidence("first", 0.1), evidence("second", 0.2))
    found = merged(old, [evidence("third", 0.3), evidence("first", 0.9)])
    assert [(e.population, e.value) for e in found] == [
        ("first", 0.9),
        ("second", 0.2),
        ("third", 0.3),
    ]


def confidence(population: str, n: int) -> ConfidenceEvidence:
    calibration = Calibration(population, 1.5, 0.01, n, n)
    gains = Escalation(population, "tiny-a", (0.0, 0.9), (0.2, 0.0), (n - 1, 1), (0.7, 1.0))
    return ConfidenceEvidence(calibration, (gains,))


def test_confidence_evidence_replaces_that_on_the_same_population_unless_it_has_fewer_items(
    folder: Path,
) -> None:
    manifest = load_manifest(folder)
    for population, n in (("p", 600), ("q", 900), ("p", 700), ("q", 600)):
        manifest = with_confidence(manifest, {"tiny-b": confidence(population, n)})
    better, faster = manifest.variants
    assert (better.calibrations, better.escalations) == ((), ())
    assert {c.population: c.n for c in faster.calibrations} == {"p": 700, "q": 900}
    assert {e.population: e.counts[0] for e in faster.escalations} == {"p": 699, "q": 899}
