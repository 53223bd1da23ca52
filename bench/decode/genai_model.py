"""A LLaMA in the form onnxruntime-genai's own model builder gives it, made without torch.

Packed 4-bit products of accuracy level 4 with symmetric blocks of 32, the head too; grouped-query
attention with rotary positions inside over one shared buffer of keys and values; the head on the
last position only (the builder's `prune_lm_head`, which is faster than its default).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from worker.models.blocks import BLOCK, Matrix
from worker.models.decoder import Decoder, DecoderLayer, DecoderNorm, Floats
from worker.models.graph import MICROSOFT_DOMAIN, GraphBuilder, write_graph
from worker.models.manifest import TensorSpec
from worker.models.quantize import ACCURACY_LEVEL
from worker.models.weights import place_weights, write_weights

_GRAPH, _WEIGHTS = "model.onnx", "model.onnx.data"


def write_genai_model(decoder: Decoder, folder: Path, *, threads: int, context: int) -> None:
    """Write graph, weights and genai_config.json of a LLaMA into `folder`, whole or not at all.

    `context` bounds the tokens of a sequence. Raises ValueError for another architecture.
    """
    if decoder.config.architecture != "llama":
        raise ValueError(f"expected a LLaMA, got {decoder.config.architecture}")
    partial = folder.with_name(folder.name + ".partial")
    partial.mkdir(parents=True, exist_ok=True)
    _Emitter(decoder, context).write(partial)
    document = json.dumps(_settings(decoder, threads, context), indent=1)
    (partial / "genai_config.json").write_text(document + "\n")
    partial.rename(folder)


class _Emitter:
    def __init__(self, decoder: Decoder, context: int) -> None:
        self._decoder = decoder
        self._config = decoder.config
        self._context = context
        self._graph = GraphBuilder("genai")
        self._arrays: dict[str, NDArray[Any]] = {}

    def write(self, folder: Path) -> None:
        config, node = self._config, self._graph.node
        lengths = self._attention_lengths()
        x = node("Gather", [self._weight("words", self._decoder.words.floats()), "input_ids"])
        branch = ""
        for index, layer in enumerate(self._decoder.layers):
            x, branch = self._layer(index, layer, x, branch, lengths)
        last = self._graph.constant("last", np.array([-1], np.int64))
        rows = [node("Gather", [value, last], axis=1) for value in (x, branch)]
        _, normed = self._norm(rows[0], rows[1], self._decoder.norm, "norm")
        head = self._decoder.words if self._decoder.head is None else self._decoder.head
        self._product(normed, head, "head", output="logits")
        placed = place_weights(self._arrays, _WEIGHTS)
        for tensor in placed.tensors.values():
            self._graph.external(tensor)
        cache = (-1, config.kv_heads, -1, config.head_dim)
        places = [(i, part) for i in range(config.layers) for part in ("key", "value")]
        inputs = [
            TensorSpec("input_ids", "int64", (-1, -1)),
            TensorSpec("attention_mask", "int64", (-1, -1)),
            *(TensorSpec(f"past_key_values.{i}.{part}", "float32", cache) for i, part in places),
        ]
        outputs = [
            TensorSpec("logits", "float32", (-1, -1, config.vocabulary)),
            *(TensorSpec(f"present.{i}.{part}", "float32", cache) for i, part in places),
        ]
        write_weights(placed, folder / _WEIGHTS)
        write_graph(self._graph.build(inputs, outputs), folder / _GRAPH)

    def _attention_lengths(self) -> tuple[str, str]:
        """Return the two length inputs of the attention: each sequence's, and the longest."""
        node, constant = self._graph.node, self._graph.constant
        axis = constant("mask_axis", np.array([1], np.int64))
        total = node("ReduceSum", ["attention_mask", axis], keepdims=0)
        less = node("Sub", [total, constant("one", np.array([1], np.int64))])
        own = node("Cast", [less], to=6)
        shape = node("Shape", ["attention_mask"])
        width = node("Gather", [shape, constant("second", np.array(1, np.int64))])
        return own, node("Cast", [width], to=6)

    def _layer(
        self, index: int, layer: DecoderLayer, x: str, branch: str, lengths: tuple[str, str]
    ) -> tuple[str, str]:
        config, node = self._config, self._graph.node
        prefix = f"layer{index}."
        x, normed = self._norm(x, branch, layer.attention_norm, prefix + "attention_norm")
        qkv = self._product(normed, layer.qkv.weight, prefix + "qkv")
        past = [f"past_key_values.{index}.{part}" for part in ("key", "value")]
        cosines, sines = self._angles()
        attended, _, _ = self._graph.nodes(
            "GroupQueryAttention",
            [qkv, "", "", *past, *lengths, cosines, sines],
            outputs=(prefix + "mixed", f"present.{index}.key", f"present.{index}.value"),
            domain=MICROSOFT_DOMAIN,
            num_heads=config.heads,
            kv_num_heads=config.kv_heads,
            do_rotary=1,
        )
        branch = self._product(attended, layer.attended.weight, prefix + "attended")
        x, normed = self._norm(x, branch, layer.mlp_norm, prefix + "mlp_norm")
        gate_rows = np.arange(config.intermediate)
        up = layer.up.weight
        gate = self._product(normed, up.rows(gate_rows), prefix + "gate")
        wide = self._product(normed, up.rows(gate_rows + config.intermediate), prefix + "up")
        active = node("Mul", [gate, node("Sigmoid", [gate])])
        down = node("Mul", [active, wide])
        return x, self._product(down, layer.down.weight, prefix + "down")

    def _norm(self, x: str, branch: str, norm: DecoderNorm, name: str) -> tuple[str, str]:
        """Return the sum of `x` and `branch` (empty for none) and its norm."""
        scale = self._weight(f"{name}.scale", norm.scale)
        epsilon = self._config.epsilon
        if not branch:
            plain = "SimplifiedLayerNormalization"
            return x, self._graph.node(plain, [x, scale], epsilon=epsilon, axis=-1)
        normed, total = f"{name}.normed", f"{name}.sum"
        self._graph.nodes(
            "SkipSimplifiedLayerNormalization",
            [x, branch, scale],
            outputs=(normed, "", "", total),
            domain=MICROSOFT_DOMAIN,
            epsilon=epsilon,
        )
        return total, normed

    def _product(self, x: str, matrix: Matrix, name: str, output: str = "") -> str:
        outputs, inputs = matrix.shape
        packed, scales = symmetric_four_bits(matrix.floats())
        weights = [self._weight(f"{name}.values", packed), self._weight(f"{name}.scales", scales)]
        return self._graph.node(
            "MatMulNBits",
            [x, *weights],
            output=output,
            domain=MICROSOFT_DOMAIN,
            K=inputs,
            N=outputs,
            bits=4,
            block_size=BLOCK,
            accuracy_level=ACCURACY_LEVEL,
        )

    def _angles(self) -> tuple[str, str]:
        """Return the cosines and sines [context, head_dim / 2] of rotary positions."""
        half = self._config.head_dim // 2
        powers = self._config.rope_theta ** (-np.arange(half) / half)
        angles = np.arange(self._context)[:, None] * powers
        return (
            self._weight("cosines", np.cos(angles).astype(np.float32)),
            self._weight("sines", np.sin(angles).astype(np.float32)),
        )

    def _weight(self, name: str, array: NDArray[Any]) -> str:
        self._arrays.setdefault(name, array)
        return name


def symmetric_four_bits(weights: Floats) -> tuple[NDArray[np.uint8], Floats]:
    """Round weights [outputs, inputs] to scale * (value - 8) in blocks of 32.

    Returns packed values [outputs, blocks, 16], the earlier of two in the low half, and scales
    [outputs * blocks]. The value of a block's largest magnitude is 0: its scale has the other sign.
    """
    blocks = weights.reshape(len(weights), -1, BLOCK)
    largest = np.abs(blocks).argmax(axis=-1)[..., None]
    scales = np.take_along_axis(blocks, largest, axis=-1) / np.float32(-8)
    divisor = np.where(scales == 0, np.float32(1), scales)
    values = np.clip(np.rint(blocks / divisor) + 8, 0, 15).astype(np.uint8)
    packed = np.asarray(values[..., 0::2] | (values[..., 1::2] << 4), np.uint8)
    return packed, scales.reshape(-1).astype(np.float32)


def _settings(decoder: Decoder, threads: int, context: int) -> dict[str, Any]:
    config = decoder.config
    return {
        "model": {
            "type": "llama",
            "bos_token_id": 1,
            "eos_token_id": 2,
            "pad_token_id": 2,
            "context_length": context,
            "vocab_size": config.vocabulary,
            "decoder": {
                "session_options": {
                    "intra_op_num_threads": threads,
                    "inter_op_num_threads": 1,
                    "provider_options": [],
                },
                "filename": _GRAPH,
                "head_size": config.head_dim,
                "hidden_size": config.hidden,
                "num_attention_heads": config.heads,
                "num_key_value_heads": config.kv_heads,
                "num_hidden_layers": config.layers,
                "inputs": {
                    "input_ids": "input_ids",
                    "attention_mask": "attention_mask",
                    "past_key_names": "past_key_values.%d.key",
                    "past_value_names": "past_key_values.%d.value",
                },
                "outputs": {
                    "logits": "logits",
                    "present_key_names": "present.%d.key",
                    "present_value_names": "present.%d.value",
                },
            },
        },
        "search": {
            "do_sample": False,
            "max_length": context,
            "min_length": 0,
            "num_beams": 1,
            "past_present_share_buffer": True,
            "top_k": 1,
        },
    }
