"""Builds encoders of the golden checkpoints for the tests of this folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from tests.golden.checkpoints import config_document, tiny_checkpoint
from worker.models.architecture import Encoder, Family, Head
from worker.models.emitter import Precision
from worker.models.encoders import emit_encoder, own_arrays, shared_arrays
from worker.models.families import classifier_head, encoder_config, read_encoder
from worker.models.manifest import Layout
from worker.models.weights import place_weights, write_weights

FAMILIES: tuple[Family, ...] = ("bert", "distilbert", "mpnet")
HEADS = ("stock", "mean", "embedding")
GOLDEN: dict[str, Any] = json.loads(
    (Path(__file__).parents[3] / "golden" / "encoders.json").read_text()
)["outputs"]


def head_of(family: Family, kind: str) -> Head:
    """Return the head whose golden outputs are called ``kind``."""
    weights = dict(tiny_checkpoint(family))
    if kind == "embedding":
        return Head("mean")
    if kind == "stock":
        del weights["head.weight"]
    return classifier_head(family, weights)


def golden_encoder(family: Family, kind: str) -> Encoder:
    """Return the tiny encoder of a family."""
    config = encoder_config(config_document(family))
    return read_encoder(config, tiny_checkpoint(family), head_of(family, kind))


def write_encoder(
    folder: Path, encoder: Encoder, layout: Layout, precision: Precision = "fp32"
) -> Path:
    """Write the graph with its weights into ``folder`` and return its path."""
    placed = place_weights(shared_arrays(encoder) | own_arrays(encoder, precision), "model.weights")
    write_weights(placed, folder / "model.weights")
    model = emit_encoder(encoder.config, encoder.head, placed.tensors, layout, precision)
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def padded_inputs(rows: list[list[int]]) -> dict[str, Any]:
    """Return ``input_ids`` and ``attention_mask`` of rows, padded to the longest with id 1."""
    ids = np.ones((len(rows), max(map(len, rows))), np.int64)
    mask = np.zeros_like(ids)
    for index, row in enumerate(rows):
        ids[index, : len(row)], mask[index, : len(row)] = row, 1
    return {"input_ids": ids, "attention_mask": mask}
