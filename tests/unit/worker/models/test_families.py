"""Reading checkpoints of the three families, and the distance buckets."""

from __future__ import annotations

import numpy as np
import pytest

from tests.golden.checkpoints import config_document, tiny_checkpoint
from worker.models.architecture import Head
from worker.models.errors import CheckpointError
from worker.models.families import (
    classifier_head,
    distance_buckets,
    encoder_config,
    has_classifier,
    read_encoder,
)


def test_buckets_are_exact_near_and_saturate_far() -> None:
    buckets = distance_buckets(32, 300)
    by_distance = {distance: int(buckets[distance + 299]) for distance in range(-299, 300)}
    assert [by_distance[-d] for d in range(8)] == list(range(8))
    assert [by_distance[d] for d in range(1, 8)] == list(range(17, 24))
    assert by_distance[-128] == by_distance[-299] == 15
    assert by_distance[128] == by_distance[299] == 31


def test_a_missing_tensor_is_named() -> None:
    weights = dict(tiny_checkpoint("bert"))
    del weights["bert.encoder.layer.1.output.dense.weight"]
    config = encoder_config(config_document("bert"))
    with pytest.raises(CheckpointError, match=r"encoder\.layer\.1\.output\.dense\.weight"):
        read_encoder(config, weights, Head("mean"))


def test_a_tensor_of_another_shape_is_named_with_both_shapes() -> None:
    weights = dict(tiny_checkpoint("bert"))
    weights["bert.encoder.layer.0.output.dense.weight"] = np.zeros((3, 5), np.float32)
    config = encoder_config(config_document("bert"))
    with pytest.raises(CheckpointError, match=r"\(32, 48\); got \(3, 5\)"):
        read_encoder(config, weights, Head("mean"))


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"model_type": "roberta"}, "roberta"),
        ({"hidden_act": "silu"}, "silu"),
        ({"position_embedding_type": "relative_key"}, "relative_key"),
    ],
)
def test_unsupported_configurations_are_refused(change: dict[str, str], fault: str) -> None:
    with pytest.raises(CheckpointError, match=fault):
        encoder_config(config_document("bert") | change)


def test_a_missing_config_field_is_named() -> None:
    document = config_document("bert")
    del document["num_hidden_layers"]
    with pytest.raises(CheckpointError, match="num_hidden_layers"):
        encoder_config(document)


def test_an_encoder_without_a_head_is_no_classifier() -> None:
    bare = {k: v for k, v in tiny_checkpoint("bert").items() if k.startswith("bert.e")}
    assert has_classifier("bert", tiny_checkpoint("bert"))
    assert not has_classifier("bert", bare)
    with pytest.raises(CheckpointError, match=r"pooler\.dense"):
        classifier_head("bert", bare)
