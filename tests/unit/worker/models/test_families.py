"""The padded graphs and the bucket table against outputs of the reference implementation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from tests.golden.checkpoints import config_document, sequences, tiny_checkpoint
from worker.models.architecture import Family, Head
from worker.models.encoders import emit_encoder, own_arrays, shared_arrays
from worker.models.errors import CheckpointError
from worker.models.families import (
    classifier_head,
    distance_buckets,
    encoder_config,
    read_encoder,
)
from worker.models.weights import place_weights, write_weights

FAMILIES: tuple[Family, ...] = ("bert", "distilbert", "mpnet")
HEADS = ("stock", "mean", "embedding")
GOLDEN = json.loads((Path(__file__).parents[3] / "golden" / "encoders.json").read_text())


def head_of(family: Family, kind: str) -> Head:
    weights = dict(tiny_checkpoint(family))
    if kind == "embedding":
        return Head("mean")
    if kind == "stock":
        del weights["head.weight"]
    return classifier_head(family, weights)


def build(folder: Path, family: Family, kind: str, layout: Any) -> Path:
    encoder = read_encoder(
        encoder_config(config_document(family)), tiny_checkpoint(family), head_of(family, kind)
    )
    placed = place_weights(shared_arrays(encoder) | own_arrays(encoder, "fp32"), "model.weights")
    write_weights(placed, folder / "model.weights")
    model = emit_encoder(encoder.config, encoder.head, placed.tensors, layout, "fp32")
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def padded(rows: list[list[int]]) -> dict[str, Any]:
    longest = max(len(row) for row in rows)
    ids = np.ones((len(rows), longest), np.int64)
    mask = np.zeros_like(ids)
    for index, row in enumerate(rows):
        ids[index, : len(row)] = row
        mask[index, : len(row)] = 1
    return {"input_ids": ids, "attention_mask": mask}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", HEADS)
def test_padded_graph_equals_the_reference(tmp_path: Path, family: Family, kind: str) -> None:
    session = onnxruntime.InferenceSession(str(build(tmp_path, family, kind, "padded")))
    answer = session.run(None, padded(sequences(family)))[0]
    np.testing.assert_allclose(answer, GOLDEN["outputs"][family][kind], atol=1e-5, rtol=0)


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
