"""Recorded answers and evidence in files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from bench.load.plan import Workload
from bench.sim.answers import Answers, read_answers
from bench.sim.model import SimModel, document_of, model_of, two_variants
from bench.sim.tally import rights
from bench.sim.workload import Workload as Traffic
from bench.workloads import answers_for
from controlplane.policy.cascade import Calibration, Escalation, Evidence
from worker.models.populations import hash_order
from worker.models.recorded import recorded_path

EVIDENCE = Evidence(
    "reviews",
    {"cheap": Calibration(1.5, (0.9, 1.1, -0.1)), "accurate": Calibration()},
    (Escalation("cheap", "accurate", (0.0, 0.8), (0.2, 0.01), (400, 600), (0.6, 0.95)),),
)


def write(path: Path, **arrays: object) -> Path:
    with path.open("wb") as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
    return path


def test_recorded_answers_are_read(tmp_path: Path) -> None:
    logits = np.array([[0.0, 1.0], [2.0, 1.0], [0.0, 3.0]], np.float32)
    path = write(tmp_path / "a.npz", tokens=[5, 6, 7], labels=[1, 1, 1], cheap=logits)
    found = read_answers(path)
    assert len(found) == 3
    assert found.row("cheap", 2) == [0.0, 3.0]
    assert found.right(["cheap"]).tolist() == [[True], [False], [True]]
    with pytest.raises(ValueError, match="no answers of accurate"):
        found.right(["accurate"])
    with pytest.raises(KeyError):
        found.row("accurate", 0)


def test_only_variants_that_answered_need_recorded_answers() -> None:
    logits = np.array([[0.0, 1.0], [2.0, 1.0], [0.0, 3.0]])
    answers = Answers(np.full(3, 5), np.ones(3, np.int64), {"cheap": logits})
    number = np.arange(4)
    item = np.array([0, 1, 2, 0], np.int32)
    traffic = Traffic(number, number + 1, number + 9, np.zeros(4), np.zeros(4), item=item)
    found = rights(answers, traffic, ["other", "cheap"], np.array([1, 1, -1, -1], np.int16))
    assert found is not None and found.tolist() == [True, False, False, False]
    with pytest.raises(ValueError, match="no answers of other"):
        rights(answers, traffic, ["other", "cheap"], np.array([1, 0, -1, -1], np.int16))


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no recorded answers"):
        read_answers(write(tmp_path / "a.npz", labels=[1]))
    with pytest.raises(ValueError, match="expected logits of 2 items"):
        read_answers(write(tmp_path / "b.npz", tokens=[1, 2], labels=[0, 1], v=[[1.0, 2.0]]))
    with pytest.raises(ValueError, match="as many lengths as labels"):
        Answers(np.zeros(1, np.int64), np.zeros(2, np.int64), {})


def test_evidence_is_kept_in_a_model_s_document() -> None:
    plain = two_variants()
    evidence = {"": EVIDENCE, "reviews": EVIDENCE}
    made = SimModel(plain.name, plain.candidates, evidence=evidence)
    back = model_of(json.loads(json.dumps(document_of(made))), "here")
    assert back.evidence == evidence
    assert "evidence" not in document_of(plain)
    assert back.table().cascades is not None


def test_evidence_that_makes_no_sense_is_refused() -> None:
    plain = two_variants()
    document = document_of(SimModel(plain.name, plain.candidates, evidence={"": EVIDENCE}))
    document["evidence"][0]["escalations"][0]["gains"] = [0.1, 0.2]
    with pytest.raises(ValueError, match="here: evidence of cascades"):
        model_of(document, "here")


def test_answers_recorded_in_another_order_find_their_texts(tmp_path: Path) -> None:
    """A population is recorded in the order of its hashes, played in that of its file."""
    texts = tuple(f"text {n}" for n in range(8))
    workload = Workload(texts, (0, 1) * 4, tokens=(3, 4, 5, 6, 7, 8, 9, 10))
    order = hash_order(texts)
    assert order != list(range(8))
    path = recorded_path(tmp_path / "model", "movie-reviews")
    path.parent.mkdir(parents=True)

    def record(rows: list[int]) -> None:
        logits = np.array([[float(n), 0.5] for n in rows], np.float32)
        lengths, labels = [workload.tokens[n] for n in rows], [workload.labels[n] for n in rows]
        write(path, tokens=lengths, labels=labels, cheap=logits)

    for recorded in (order, list(range(8))):
        record(recorded)
        found = answers_for(tmp_path, "model", workload)
        assert found is not None
        assert [found.row("cheap", n)[0] for n in range(8)] == list(range(8))
    record(list(reversed(range(8))))
    assert answers_for(tmp_path, "model", workload) is None
