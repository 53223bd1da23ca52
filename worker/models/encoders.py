"""Emits an encoder as an ONNX graph: ragged for this project's engine, padded for any runtime."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import onnx
from numpy.typing import NDArray

from worker.models.architecture import Encoder, EncoderConfig, Head
from worker.models.emitter import Precision
from worker.models.layouts import classifier_outputs, embedder_outputs, text_inputs
from worker.models.manifest import Layout, TensorSpec
from worker.models.padded import PaddedEmitter
from worker.models.quantize import quantize
from worker.models.ragged import RaggedEmitter

Arrays = dict[str, NDArray[Any]]
TokenLayout = Literal["ragged", "padded"]


def shared_arrays(encoder: Encoder) -> Arrays:
    """Return the weights that all variants of one base checkpoint have in common, by name."""
    embeddings = encoder.embeddings
    arrays: Arrays = {"words": embeddings.words, "positions": embeddings.positions}
    if embeddings.distances is not None:
        arrays["distances"] = embeddings.distances
    return arrays


def own_arrays(encoder: Encoder, precision: Precision) -> Arrays:
    """Return the weights of one variant by name: layers in ``precision``, the rest in fp32."""
    arrays: Arrays = {
        "norm.scale": encoder.embeddings.norm.scale,
        "norm.shift": encoder.embeddings.norm.shift,
    }
    for index, layer in enumerate(encoder.layers):
        prefix = f"layer{index}."
        for part in ("qkv", "attended", "up", "down"):
            affine = getattr(layer, part)
            if precision == "int8":
                blocks = quantize(affine.weight)
                arrays[f"{prefix}{part}.blocks"] = blocks.values
                arrays[f"{prefix}{part}.scales"] = blocks.scales
            else:
                arrays[f"{prefix}{part}.weight"] = affine.weight
            arrays[f"{prefix}{part}.bias"] = affine.bias
        for part in ("attended_norm", "output_norm"):
            norm = getattr(layer, part)
            arrays[f"{prefix}{part}.scale"] = norm.scale
            arrays[f"{prefix}{part}.shift"] = norm.shift
    for part in ("dense", "output"):
        affine = getattr(encoder.head, part)
        if affine is not None:
            arrays[f"head.{part}.weight"] = affine.weight
            arrays[f"head.{part}.bias"] = affine.bias
    return arrays


def emit_encoder(
    config: EncoderConfig,
    head: Head,
    tensors: Mapping[str, onnx.TensorProto],
    layout: Layout,
    precision: Precision,
) -> onnx.ModelProto:
    """Return the graph of an encoder whose weights are ``tensors`` (see the functions above).

    Raises ValueError for the tensor layout.
    """
    outputs = output_specs(config, head)
    emitter = {"ragged": RaggedEmitter, "padded": PaddedEmitter}.get(layout)
    if emitter is None:
        raise ValueError("expected layout 'ragged' or 'padded', got 'tensor'")
    graph = emitter(config, head, tensors, precision).emit(outputs[0].name)
    return graph.build(text_inputs(layout), outputs)


def output_specs(config: EncoderConfig, head: Head) -> tuple[TensorSpec, ...]:
    """Return the signature of the answer: logits of a classifier or the embedding."""
    if head.output is None:
        width = config.hidden if head.dense is None else len(head.dense.bias)
        return embedder_outputs(width)
    return classifier_outputs(len(head.output.bias))
