"""The model of the engine bench: an encoder of mpnet8's shape with random weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from worker.models.architecture import (
    Affine,
    Embeddings,
    Encoder,
    EncoderConfig,
    Floats,
    Head,
    Layer,
    Norm,
)
from worker.models.encoders import emit_encoder, own_arrays, shared_arrays
from worker.models.graph import write_graph
from worker.models.weights import place_weights, write_weights

MPNET8 = EncoderConfig(
    family="mpnet",
    layers=8,
    hidden=768,
    heads=12,
    intermediate=3072,
    vocabulary=30527,
    max_tokens=512,
    epsilon=1e-5,
)


@dataclass(frozen=True, slots=True)
class BenchGraphs:
    """Two graphs of the same weights."""

    ragged: Path
    padded: Path


def build_graphs(folder: Path, config: EncoderConfig = MPNET8, *, seed: int = 1) -> BenchGraphs:
    """Write both graphs and their one weight file into `folder`."""
    encoder = _random_encoder(config, seed)
    arrays = {**shared_arrays(encoder), **own_arrays(encoder, "fp32")}
    placed = place_weights(arrays, "weights.bin")
    write_weights(placed, folder / "weights.bin")
    graphs = BenchGraphs(folder / "ragged.onnx", folder / "padded.onnx")
    ragged = emit_encoder(config, encoder.head, placed.tensors, "ragged", "fp32")
    padded = emit_encoder(config, encoder.head, placed.tensors, "padded", "fp32")
    write_graph(ragged, graphs.ragged)
    write_graph(padded, graphs.padded)
    return graphs


def floating_point_operations(config: EncoderConfig, lengths: Sequence[int]) -> float:
    """Operations of the layers' matrix products, a multiply-add counting two.

    Per layer `2 T (4 H^2 + 2 H F)` for the projections and `4 H sum(L^2)` for attention, with T
    the sum of the lengths L, H the hidden and F the intermediate width. Everything else
    (embeddings, norms, softmax, pooling) counts as zero: it is overhead by this measure.
    """
    tokens = sum(lengths)
    hidden, wide = config.hidden, config.intermediate
    dense = 2.0 * tokens * (4 * hidden * hidden + 2 * hidden * wide)
    attention = 4.0 * hidden * sum(length * length for length in lengths)
    return config.layers * (dense + attention)


def _random_encoder(config: EncoderConfig, seed: int) -> Encoder:
    random = np.random.default_rng(seed)
    hidden = config.hidden

    def draw(*shape: int) -> Floats:
        return random.standard_normal(shape, dtype=np.float32) * np.float32(0.02)

    def affine(inputs: int, outputs: int) -> Affine:
        return Affine(draw(inputs, outputs), draw(outputs))

    def norm() -> Norm:
        return Norm(1 + draw(hidden), draw(hidden))

    layers = tuple(
        Layer(
            qkv=affine(hidden, 3 * hidden),
            attended=affine(hidden, hidden),
            attended_norm=norm(),
            up=affine(hidden, config.intermediate),
            down=affine(config.intermediate, hidden),
            output_norm=norm(),
        )
        for _ in range(config.layers)
    )
    embeddings = Embeddings(
        words=draw(config.vocabulary, hidden),
        positions=draw(config.max_tokens, hidden),
        norm=norm(),
        distances=draw(config.heads, 2 * config.max_tokens - 1),
    )
    head = Head("mean", affine(hidden, hidden), "tanh", affine(hidden, 2))
    return Encoder(config, embeddings, layers, head)
