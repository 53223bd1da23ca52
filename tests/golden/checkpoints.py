"""Tiny random checkpoints of each family, from numpy's frozen legacy generator.

The golden outputs beside this file were computed from exactly these weights.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

VOCABULARY = 60
HIDDEN, HEADS, WIDE, LAYERS, CLASSES = 32, 4, 48, 2, 3
POSITIONS = 202
LENGTHS = (1, 2, 7, 33, 150, 200)

Weights = dict[str, NDArray[np.float32]]

_LAYER_NAMES = {
    "bert": (
        "encoder.layer.{}.",
        ("attention.self.query", "attention.self.key", "attention.self.value"),
        ("attention.output.dense", "attention.output.LayerNorm"),
        ("intermediate.dense", "output.dense", "output.LayerNorm"),
    ),
    "mpnet": (
        "encoder.layer.{}.",
        ("attention.attn.q", "attention.attn.k", "attention.attn.v"),
        ("attention.attn.o", "attention.LayerNorm"),
        ("intermediate.dense", "output.dense", "output.LayerNorm"),
    ),
    "distilbert": (
        "transformer.layer.{}.",
        ("attention.q_lin", "attention.k_lin", "attention.v_lin"),
        ("attention.out_lin", "sa_layer_norm"),
        ("ffn.lin1", "ffn.lin2", "output_layer_norm"),
    ),
}
_STOCK_HEADS = {
    "bert": ("bert.pooler.dense", "classifier"),
    "mpnet": ("classifier.dense", "classifier.out_proj"),
    "distilbert": ("pre_classifier", "classifier"),
}


def config_document(family: str) -> dict[str, Any]:
    """Return the ``config.json`` of the tiny checkpoint of a family."""
    if family == "distilbert":
        return {
            "model_type": family,
            "vocab_size": VOCABULARY,
            "dim": HIDDEN,
            "n_heads": HEADS,
            "n_layers": LAYERS,
            "hidden_dim": WIDE,
            "max_position_embeddings": POSITIONS,
            "activation": "gelu",
        }
    document: dict[str, Any] = {
        "model_type": family,
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "num_attention_heads": HEADS,
        "num_hidden_layers": LAYERS,
        "intermediate_size": WIDE,
        "max_position_embeddings": POSITIONS,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-5 if family == "mpnet" else 1e-12,
    }
    if family == "mpnet":
        document["relative_attention_num_buckets"] = 32
    return document


def tiny_checkpoint(family: str) -> Weights:
    """Return the weights of a family's sequence classifier plus a mean head (``head.*``)."""
    random = np.random.RandomState({"bert": 11, "distilbert": 12, "mpnet": 13}[family])
    weights: Weights = {}

    def draw(name: str, *shape: int, scale: float = 0.3, shift: float = 0.0) -> None:
        weights[name] = (random.standard_normal(shape) * scale + shift).astype(np.float32)

    def affine(name: str, outputs: int, inputs: int) -> None:
        draw(f"{name}.weight", outputs, inputs)
        draw(f"{name}.bias", outputs)

    def norm(name: str) -> None:
        draw(f"{name}.weight", HIDDEN, scale=0.1, shift=1.0)
        draw(f"{name}.bias", HIDDEN, scale=0.1)

    base = f"{family}."
    draw(f"{base}embeddings.word_embeddings.weight", VOCABULARY, HIDDEN)
    draw(f"{base}embeddings.position_embeddings.weight", POSITIONS, HIDDEN)
    if family == "bert":
        draw(f"{base}embeddings.token_type_embeddings.weight", 2, HIDDEN)
    norm(f"{base}embeddings.LayerNorm")
    prefix, projections, (attended, attended_norm), (up, down, last) = _LAYER_NAMES[family]
    for layer in range(LAYERS):
        here = base + prefix.format(layer)
        for name in (*projections, attended):
            affine(here + name, HIDDEN, HIDDEN)
        norm(here + attended_norm)
        affine(here + up, WIDE, HIDDEN)
        affine(here + down, HIDDEN, WIDE)
        norm(here + last)
    if family == "mpnet":
        draw(f"{base}encoder.relative_attention_bias.weight", 32, HEADS, scale=1.0)
    dense, output = _STOCK_HEADS[family]
    affine(dense, HIDDEN, HIDDEN)
    affine(output, CLASSES, HIDDEN)
    affine("head", CLASSES, HIDDEN)
    return weights


def sequences(family: str) -> list[list[int]]:
    """Return the token sequences of the golden outputs, one of each length.

    Ids start at 5, past every family's padding id, on which stock MPNet positions depend.
    """
    random = np.random.RandomState({"bert": 21, "distilbert": 22, "mpnet": 23}[family])
    return [[int(i) for i in random.randint(5, VOCABULARY, size)] for size in LENGTHS]
