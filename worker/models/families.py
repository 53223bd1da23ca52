"""Reads the checkpoints of BERT, DistilBERT and MPNet into the one Encoder description."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast, get_args

import numpy as np
from numpy.typing import NDArray

from worker.models.architecture import (
    Affine,
    Embeddings,
    Encoder,
    EncoderConfig,
    Family,
    Floats,
    Head,
    HiddenActivation,
    Layer,
    Norm,
)
from worker.models.config_fields import ConfigFields
from worker.models.errors import CheckpointError

Weights = Mapping[str, NDArray[Any]]

MAX_DISTANCE = 128

# MPNet counts positions from the row after its padding row, whatever pad_token_id says.
_MPNET_FIRST_POSITION = 2
# T5's buckets are halves, of which one half again is exact.
_LEAST_BUCKETS = 4

_OWN_CONFIG = "use the checkpoint's own config.json"


@dataclass(frozen=True, slots=True)
class _LayerNames:
    """Where a family keeps the parts of layer ``i``; names without the trailing ``.weight``."""

    prefix: str
    query: str
    key: str
    value: str
    attended: str
    attended_norm: str
    up: str
    down: str
    output_norm: str


_BERT = _LayerNames(
    prefix="encoder.layer.{}.",
    query="attention.self.query",
    key="attention.self.key",
    value="attention.self.value",
    attended="attention.output.dense",
    attended_norm="attention.output.LayerNorm",
    up="intermediate.dense",
    down="output.dense",
    output_norm="output.LayerNorm",
)
_MPNET = _LayerNames(
    prefix="encoder.layer.{}.",
    query="attention.attn.q",
    key="attention.attn.k",
    value="attention.attn.v",
    attended="attention.attn.o",
    attended_norm="attention.LayerNorm",
    up="intermediate.dense",
    down="output.dense",
    output_norm="output.LayerNorm",
)
_DISTILBERT = _LayerNames(
    prefix="transformer.layer.{}.",
    query="attention.q_lin",
    key="attention.k_lin",
    value="attention.v_lin",
    attended="attention.out_lin",
    attended_norm="sa_layer_norm",
    up="ffn.lin1",
    down="ffn.lin2",
    output_norm="output_layer_norm",
)
# The dense layer after the first token's state, and the output layer, of stock classifiers.
_STOCK_HEADS: dict[Family, tuple[str, str]] = {
    "bert": ("pooler.dense", "classifier"),
    "distilbert": ("pre_classifier", "classifier"),
    "mpnet": ("classifier.dense", "classifier.out_proj"),
}
_NAMES: dict[Family, _LayerNames] = {"bert": _BERT, "distilbert": _DISTILBERT, "mpnet": _MPNET}


def encoder_config(document: Mapping[str, Any]) -> EncoderConfig:
    """Read a checkpoint's ``config.json``.

    Raises CheckpointError for other families or options that the graphs do not have.
    """
    family = document.get("model_type")
    if family not in get_args(Family):
        raise CheckpointError(
            f"a model_type of {', '.join(get_args(Family))}",
            repr(family),
            "export this model to ONNX yourself and use `orchid models import`",
        )
    distil = family == "distilbert"
    activation = document.get("activation" if distil else "hidden_act", "gelu")
    if activation not in get_args(HiddenActivation):
        raise CheckpointError(
            f"an activation of {', '.join(get_args(HiddenActivation))}",
            repr(activation),
            "export this model to ONNX yourself and use `orchid models import`",
        )
    if document.get("position_embedding_type", "absolute") != "absolute":
        raise CheckpointError(
            "absolute position embeddings",
            repr(document["position_embedding_type"]),
            "export this model to ONNX yourself and use `orchid models import`",
        )
    fields = ConfigFields(document, file="config.json", remedy=_OWN_CONFIG)
    family = cast(Family, family)
    unused = _unused_positions(family)
    config = EncoderConfig(
        family=family,
        layers=fields.size("n_layers" if distil else "num_hidden_layers"),
        hidden=fields.size("dim" if distil else "hidden_size"),
        heads=fields.size("n_heads" if distil else "num_attention_heads"),
        intermediate=fields.size("hidden_dim" if distil else "intermediate_size"),
        vocabulary=fields.size("vocab_size"),
        max_tokens=fields.size("max_position_embeddings", least=1 + unused) - unused,
        epsilon=1e-12 if distil else fields.positive("layer_norm_eps", 1e-12),
        activation=cast(HiddenActivation, activation),
    )
    if config.hidden % config.heads:
        raise CheckpointError(
            "a hidden size in config.json in multiples of its heads",
            f"{config.hidden} and {config.heads}",
            _OWN_CONFIG,
        )
    return config


def read_encoder(config: EncoderConfig, weights: Weights, head: Head) -> Encoder:
    """Gather the encoder's weights by their checkpoint names, with or without the family prefix.

    Raises CheckpointError naming a tensor that is missing or has another shape.
    """
    source = _Source(weights, config.family)
    names = _NAMES[config.family]
    layers = tuple(_layer(source, names, index, config) for index in range(config.layers))
    return Encoder(config, _embeddings(source, config), layers, head)


def classifier_head(family: Family, weights: Weights) -> Head:
    """Read the head of a checkpoint: this project's own mean head, or the family's stock one.

    Raises CheckpointError when the checkpoint has neither.
    """
    if "head.weight" in weights:
        return Head("mean", output=_affine(_Source(weights, family), "head"))
    source = _Source(weights, family)
    dense, output = _STOCK_HEADS[family]
    return Head(
        "first",
        dense=_affine(source, dense),
        dense_activation="relu" if family == "distilbert" else "tanh",
        output=_affine(source, output),
    )


def has_classifier(family: Family, weights: Weights) -> bool:
    """Tell whether a checkpoint has a head that ``classifier_head`` can read."""
    return "head.weight" in weights or f"{_STOCK_HEADS[family][1]}.weight" in weights


def distance_buckets(count: int, positions: int) -> NDArray[np.int64]:
    """Return the T5 bucket of every distance key - query from 1 - M to M - 1, for M positions.

    Half of the buckets are for keys after the query; in each half the first half is exact and
    the rest grows logarithmically up to a distance of 128 (Raffel et al. 2020, bidirectional).
    """
    distance = np.arange(1 - positions, positions, dtype=np.int64)
    half, exact = count // 2, count // 4
    size = np.abs(distance)
    growth = np.log(np.maximum(size, 1).astype(np.float32) / np.float32(exact))
    growth = growth / np.float32(math.log(MAX_DISTANCE / exact)) * np.float32(half - exact)
    large = np.minimum(exact + growth.astype(np.int64), half - 1)
    bucket: NDArray[np.int64] = np.where(size < exact, size, large)
    return bucket + half * (distance > 0)


class _Source:
    """Finds tensors by name, tolerating the prefix that task models put before the encoder."""

    def __init__(self, weights: Weights, family: Family) -> None:
        self._weights = weights
        self._prefix = f"{family}."

    def get(self, name: str) -> Floats:
        for candidate in (name, self._prefix + name):
            if candidate in self._weights:
                return np.asarray(self._weights[candidate], dtype=np.float32)
        raise CheckpointError(
            f"a tensor {name!r} in the checkpoint",
            f"{len(self._weights)} tensors without it",
            "check that config.json and the weights belong together",
        )

    def shaped(self, name: str, shape: tuple[int, ...]) -> Floats:
        array = self.get(name)
        if array.shape != shape:
            raise CheckpointError(
                f"tensor {name!r} of shape {shape}",
                str(array.shape),
                "check that config.json and the weights belong together",
            )
        return array


def _unused_positions(family: Family) -> int:
    return _MPNET_FIRST_POSITION if family == "mpnet" else 0


def _affine(source: _Source, name: str) -> Affine:
    return Affine(np.ascontiguousarray(source.get(f"{name}.weight").T), source.get(f"{name}.bias"))


def _norm(source: _Source, name: str) -> Norm:
    return Norm(source.get(f"{name}.weight"), source.get(f"{name}.bias"))


def _layer(source: _Source, names: _LayerNames, index: int, config: EncoderConfig) -> Layer:
    prefix = names.prefix.format(index)
    hidden, wide = config.hidden, config.intermediate

    def read(name: str, inputs: int, outputs: int) -> Affine:
        weight = source.shaped(f"{prefix}{name}.weight", (outputs, inputs))
        return Affine(np.ascontiguousarray(weight.T), source.get(f"{prefix}{name}.bias"))

    parts = [read(name, hidden, hidden) for name in (names.query, names.key, names.value)]
    qkv = Affine(
        np.concatenate([part.weight for part in parts], axis=1),
        np.concatenate([part.bias for part in parts]),
    )
    return Layer(
        qkv=qkv,
        attended=read(names.attended, hidden, hidden),
        attended_norm=_norm(source, prefix + names.attended_norm),
        up=read(names.up, hidden, wide),
        down=read(names.down, wide, hidden),
        output_norm=_norm(source, prefix + names.output_norm),
    )


def _embeddings(source: _Source, config: EncoderConfig) -> Embeddings:
    words = source.shaped("embeddings.word_embeddings.weight", (config.vocabulary, config.hidden))
    table = source.get("embeddings.position_embeddings.weight")
    unused = _unused_positions(config.family)
    rows = config.max_tokens + unused
    if table.shape != (rows, config.hidden):
        raise CheckpointError(
            "'max_position_embeddings' in config.json to be the number of position embeddings, "
            f"which are {table.shape}",
            str((rows, config.hidden)),
            _OWN_CONFIG,
        )
    positions = table[unused:]
    if config.family == "bert":
        positions = positions + source.get("embeddings.token_type_embeddings.weight")[0]
    distances = None
    if config.family == "mpnet":
        biases = source.get("encoder.relative_attention_bias.weight")
        if biases.shape[1:] != (config.heads,) or len(biases) < _LEAST_BUCKETS:
            raise CheckpointError(
                f"relative attention biases of shape (buckets, {config.heads})",
                str(biases.shape),
                _OWN_CONFIG,
            )
        buckets = distance_buckets(len(biases), config.max_tokens)
        distances = np.ascontiguousarray(biases[buckets].T)
    norm = _norm(source, "embeddings.LayerNorm")
    return Embeddings(words, np.ascontiguousarray(positions), norm, distances)
