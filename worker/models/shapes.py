"""Encoders of a real size with random weights: what engine benches run without a download."""

from __future__ import annotations

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
from worker.models.encoders import TokenLayout, emit_encoder, own_arrays, shared_arrays
from worker.models.graph import write_graph
from worker.models.weights import place_weights, write_weights

# The sizes of the default model's two bases; vocabularies are cut, they cost nothing to run.
MPNET_SIZES = EncoderConfig("mpnet", 8, 768, 12, 3072, 2048, 512, 1e-5)
MINILM_SIZES = EncoderConfig("bert", 6, 384, 12, 1536, 2048, 512, 1e-12)


def random_encoder(config: EncoderConfig, *, classes: int = 2, seed: int = 0) -> Encoder:
    """Return a mean-pooled classifier of the given sizes; MPNet's has a distance bias."""
    random = np.random.default_rng(seed)
    hidden, wide = config.hidden, config.intermediate

    def draw(*shape: int, scale: float) -> Floats:
        return random.standard_normal(shape, dtype=np.float32) * np.float32(scale)

    def affine(inputs: int, outputs: int) -> Affine:
        return Affine(draw(inputs, outputs, scale=inputs**-0.5), draw(outputs, scale=0.1))

    def norm() -> Norm:
        return Norm(np.ones(hidden, np.float32), draw(hidden, scale=0.1))

    layers = tuple(
        Layer(
            qkv=affine(hidden, 3 * hidden),
            attended=affine(hidden, hidden),
            attended_norm=norm(),
            up=affine(hidden, wide),
            down=affine(wide, hidden),
            output_norm=norm(),
        )
        for _ in range(config.layers)
    )
    mpnet = config.family == "mpnet"
    embeddings = Embeddings(
        words=draw(config.vocabulary, hidden, scale=1.0),
        positions=draw(config.max_tokens, hidden, scale=1.0),
        norm=norm(),
        distances=draw(config.heads, 2 * config.max_tokens - 1, scale=1.0) if mpnet else None,
    )
    return Encoder(config, embeddings, layers, Head("mean", output=affine(hidden, classes)))


def write_layouts(folder: Path, encoder: Encoder) -> dict[TokenLayout, Path]:
    """Write the ragged and the padded fp32 graph over one weight file; return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    arrays = shared_arrays(encoder) | own_arrays(encoder, "fp32")
    placed = place_weights(arrays, "encoder.weights")
    write_weights(placed, folder / "encoder.weights")
    paths: dict[TokenLayout, Path] = {}
    layouts: tuple[TokenLayout, ...] = ("ragged", "padded")
    for layout in layouts:
        paths[layout] = folder / f"{layout}.onnx"
        model = emit_encoder(encoder.config, encoder.head, placed.tensors, layout, "fp32")
        write_graph(model, paths[layout])
    return paths
