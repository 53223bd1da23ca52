"""Perplexity, agreement and divergence: right by the definition, resumable, in the manifest."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from worker.engine import Session
from worker.models.errors import CheckpointError
from worker.models.manifest import load_manifest
from worker.models.novels import POPULATION
from worker.models.perplexity import (
    AGREEMENT,
    DIVERGENCE,
    PERPLEXITY,
    PERPLEXITY_RATIO,
    GeneratorEvaluation,
    score,
    windows,
)
from worker.models.progress import Silent
from worker.models.synthetic import build_synthetic
from worker.models.synthetic_decoder import reference_decode
from worker.models.synthetic_generator import (
    build_tiny_generator,
    tiny_generator_decoder,
    tiny_generator_tokenizer,
)

TEXTS = tuple(f"the inner theatre {number}, in the rain; " * 40 for number in range(3))
LENGTH = 128


class Opened:
    """Opens sessions and notes of which graphs."""

    def __init__(self) -> None:
        self.graphs: list[str] = []

    def __call__(self, graph: Path) -> Session:
        self.graphs.append(graph.stem)
        return Session(graph, share_weights=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return build_tiny_generator(tmp_path, precisions=("fp32", "q4"), context=LENGTH)


def test_evidence_is_that_of_the_definition(folder: Path) -> None:
    opened = Opened()
    manifest = GeneratorEvaluation(folder, "here", opened, Silent()).run((), TEXTS, 4)
    fp32, q4 = manifest.variants
    assert load_manifest(folder) == manifest

    ids = [tiny_generator_tokenizer().encode(text).ids for text in TEXTS]
    surprise = []
    for window in windows(ids, LENGTH, 4):
        logits = reference_decode(tiny_generator_decoder(context=LENGTH), window)[31:-1]
        shifted = logits - logits.max(axis=-1, keepdims=True)
        chances = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
        surprise += [-chances[row, token] for row, token in enumerate(window[32:])]
    found = {item.metric: item for item in fp32.quality}
    assert set(found) == {AGREEMENT, PERPLEXITY}
    assert found[PERPLEXITY].value == pytest.approx(np.exp(np.mean(surprise)), rel=1e-3)
    assert found[PERPLEXITY].n == 4 * 96 == len(surprise)
    assert found[PERPLEXITY].low < found[PERPLEXITY].value < found[PERPLEXITY].high
    assert found[AGREEMENT].value == 1 and found[AGREEMENT].low < 1

    assert [item.metric for item in q4.quality] == [
        AGREEMENT,
        PERPLEXITY,
        PERPLEXITY_RATIO,
        DIVERGENCE,
    ]
    by_metric = {item.metric: item for item in q4.quality}
    ratio = by_metric[PERPLEXITY].value / found[PERPLEXITY].value
    assert by_metric[PERPLEXITY_RATIO].value == pytest.approx(ratio)
    assert by_metric[DIVERGENCE].value > 0
    assert 0 < by_metric[AGREEMENT].value <= 1
    assert {item.population for item in q4.quality} == {POPULATION}


def test_what_is_done_is_kept_and_more_windows_go_on_behind_it(folder: Path) -> None:
    first = GeneratorEvaluation(folder, "here", Opened(), Silent()).run((), TEXTS, 2)
    again = Opened()
    assert GeneratorEvaluation(folder, "here", again, Silent()).run((), TEXTS, 2) == first
    assert again.graphs == []
    longer = GeneratorEvaluation(folder, "here", again, Silent()).run((), TEXTS, 3)
    assert sorted(again.graphs) == ["tiny-chat-fp32", "tiny-chat-q4"]
    assert longer.variants[1].quality[0].n == 3 * 96
    elsewhere = Opened()
    GeneratorEvaluation(folder, "there", elsewhere, Silent()).run(("tiny-chat-q4",), TEXTS, 1)
    assert sorted(elsewhere.graphs) == ["tiny-chat-fp32", "tiny-chat-q4"]


def test_windows_are_spread_over_the_texts_and_begin_the_same_however_many() -> None:
    texts = [list(range(1000)), list(range(5000, 5800))]
    few, many = windows(texts, 100, 3), windows(texts, 100, 24)
    assert many[:3] == few
    assert [window[0] for window in few] == [0, 5000, 75]
    assert all(len(window) == 100 for window in many)
    assert max(window[-1] for window in many[::2]) > 900
    with pytest.raises(ValueError, match="over 1007 tokens"):
        windows(texts, 995, 1)


def test_scores_of_known_logits() -> None:
    same = np.zeros((2, 4), np.float32)
    one = score([3, 1, 2], same, same)
    assert one.tokens == one.agreed == 2
    assert one.surprise == one.reference == pytest.approx(2 * np.log(4))
    assert one.divergence == pytest.approx(0)
    sure = np.array([[0, 9, 0, 0], [0, 9, 0, 0]], np.float32)
    other = score([3, 1, 2], same, sure)
    assert other.agreed == 0
    assert other.divergence > 1


def test_only_language_models_with_fp32_are_evaluated(tmp_path: Path) -> None:
    classifier = GeneratorEvaluation(build_synthetic(tmp_path), "here", Opened(), Silent())
    with pytest.raises(CheckpointError, match="language model"):
        classifier.run((), TEXTS)
    folder = build_tiny_generator(tmp_path, "only-q4", precisions=("q4",))
    with pytest.raises(CheckpointError, match="an fp32 variant"):
        GeneratorEvaluation(folder, "here", Opened(), Silent()).run((), TEXTS)
    folder = build_tiny_generator(tmp_path, "both", precisions=("fp32",))
    with pytest.raises(CheckpointError, match="'nobody'"):
        GeneratorEvaluation(folder, "here", Opened(), Silent()).run(("nobody",), TEXTS)
