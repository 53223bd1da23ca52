"""The stock graph of a decoder: padded ``[batch, tokens]``, keys and values in and out as tensors.

This is what exporters write: ``past_key_values.N.key`` and ``.value`` [batch, kv_heads, past,
head_dim] go in, ``present.N.*`` with the new tokens behind them come out, all of it in standard
operators, logits for every token.
"""

from __future__ import annotations

import numpy as np
import onnx
from numpy.typing import NDArray

from worker.models.decoder import Decoder, DecoderLayer, DecoderNorm, Linear
from worker.models.graph import GraphBuilder
from worker.models.manifest import TensorSpec
from worker.models.weights import PlacedWeights, place_weights

# Added to the score of a position that must not be seen: its weight becomes exactly zero.
_HIDDEN = np.float32(-3e38)


def emit_stock(decoder: Decoder, weights: str) -> tuple[onnx.ModelProto, PlacedWeights]:
    """Return the fp32 stock graph of a decoder and what belongs into the file ``weights``."""
    return _StockEmitter(decoder).emit(weights)


class _StockEmitter:
    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._config = decoder.config
        self._graph = GraphBuilder("stock")
        self._arrays: dict[str, NDArray[np.generic]] = {}

    def emit(self, weights: str) -> tuple[onnx.ModelProto, PlacedWeights]:
        config, node = self._config, self._graph.node
        x = node("Gather", [self._weight("words", self._decoder.words.floats()), "input_ids"])
        if self._decoder.positions is not None:
            places = self._weight("places", self._decoder.positions)
            x = node("Add", [x, node("Gather", [places, "position_ids"])])
        hidden, angles = self._hidden_scores(), self._angles()
        for index, layer in enumerate(self._decoder.layers):
            x = self._layer(index, layer, x, hidden, angles)
        normed = self._norm(x, self._decoder.norm, "norm")
        head = self._decoder.words if self._decoder.head is None else self._decoder.head
        transposed = np.ascontiguousarray(head.floats().T)
        node("MatMul", [normed, self._weight("head", transposed)], output="logits")
        own = place_weights(self._arrays, weights)
        for tensor in own.tensors.values():
            self._graph.external(tensor)
        cache = (-1, config.kv_heads, -1, config.head_dim)
        names = [f"{i}.{part}" for i in range(config.layers) for part in ("key", "value")]
        inputs = [
            TensorSpec("input_ids", "int64", (-1, -1)),
            TensorSpec("attention_mask", "int64", (-1, -1)),
            TensorSpec("position_ids", "int64", (-1, -1)),
            *(TensorSpec(f"past_key_values.{name}", "float32", cache) for name in names),
        ]
        outputs = [
            TensorSpec("logits", "float32", (-1, -1, config.vocabulary)),
            *(TensorSpec(f"present.{name}", "float32", cache) for name in names),
        ]
        return self._graph.build(inputs, outputs), own

    def _hidden_scores(self) -> str:
        """Return what is added to scores [batch, 1, tokens, total]: zero, or `_HIDDEN`."""
        node = self._graph.node
        total = node("Gather", [node("Shape", ["attention_mask"]), self._index(1)])
        tokens = node("Gather", [node("Shape", ["input_ids"]), self._index(1)])
        columns = node("Range", [self._index(0), total, self._index(1)])
        past = node("Sub", [total, tokens])
        rows = node("Add", [node("Range", [self._index(0), tokens, self._index(1)]), past])
        causal = node("LessOrEqual", [columns, node("Unsqueeze", [rows, self._ints("last", -1)])])
        real = node("Cast", ["attention_mask"], to=onnx.TensorProto.BOOL)
        seen = node("And", [causal, node("Unsqueeze", [real, self._ints("middle", 1, 2)])])
        zero = self._graph.constant("zero", np.array(0, np.float32))
        hidden = self._graph.constant("hidden", np.array(_HIDDEN, np.float32))
        return node("Where", [seen, zero, hidden])

    def _angles(self) -> tuple[str, str] | None:
        """Return cosines and sines [batch, 1, tokens, head_dim] of rotary positions, if any."""
        if not self._config.rope_theta:
            return None
        half = self._config.head_dim // 2
        powers = self._config.rope_theta ** (-np.arange(half) / half)
        angles = np.arange(self._config.context)[:, None] * np.tile(powers, 2)
        found = []
        for name, values in (("cosines", np.cos(angles)), ("sines", np.sin(angles))):
            table = self._weight(name, values.astype(np.float32))
            rows = self._graph.node("Gather", [table, "position_ids"])
            found.append(self._graph.node("Unsqueeze", [rows, self._ints("heads_axis", 1)]))
        return found[0], found[1]

    def _layer(
        self, index: int, layer: DecoderLayer, x: str, hidden: str, angles: tuple[str, str] | None
    ) -> str:
        node, prefix = self._graph.node, f"layer{index}."
        normed = self._norm(x, layer.attention_norm, prefix + "attention_norm")
        mixed = self._attention(
            index, self._linear(normed, layer.qkv, prefix + "qkv"), angles, hidden
        )
        x = node("Add", [x, self._linear(mixed, layer.attended, prefix + "attended")])
        normed = self._norm(x, layer.mlp_norm, prefix + "mlp_norm")
        wide = self._linear(normed, layer.up, prefix + "up")
        if self._config.architecture == "llama":
            gate, up = self._graph.nodes("Split", [wide], outputs=("", ""), axis=-1, num_outputs=2)
            active = node("Mul", [node("Mul", [gate, node("Sigmoid", [gate])]), up])
        else:
            active = node("Gelu", [wide], approximate="tanh")
        return node("Add", [x, self._linear(active, layer.down, prefix + "down")])

    def _attention(self, index: int, qkv: str, angles: tuple[str, str] | None, hidden: str) -> str:
        config, node = self._config, self._graph.node
        sizes = [config.heads, config.kv_heads, config.kv_heads]
        widths = np.array([size * config.head_dim for size in sizes], np.int64)
        parts = self._graph.nodes(
            "Split",
            [qkv, self._graph.constant("widths", widths)],
            outputs=("", "", ""),
            axis=-1,
        )
        heads = [self._heads(part, size) for part, size in zip(parts, sizes, strict=True)]
        query, key, value = heads
        if angles is not None:
            query, key = self._rotated(query, angles), self._rotated(key, angles)
        whole = []
        for name, new in (("key", key), ("value", value)):
            past, present = f"past_key_values.{index}.{name}", f"present.{index}.{name}"
            node("Concat", [past, new], output=present, axis=2)
            whole.append(self._repeated(present))
        keys = node("Transpose", [whole[0]], perm=[0, 1, 3, 2])
        scale = self._graph.constant("scale", np.array(config.head_dim**-0.5, np.float32))
        scores = node("MatMul", [node("Mul", [query, scale]), keys])
        weights = node("Softmax", [node("Add", [scores, hidden])], axis=-1)
        mixed = node("Transpose", [node("MatMul", [weights, whole[1]])], perm=[0, 2, 1, 3])
        return node("Reshape", [mixed, self._ints("merged", 0, 0, -1)])

    def _heads(self, x: str, heads: int) -> str:
        """Return [batch, tokens, heads * head_dim] as [batch, heads, tokens, head_dim]."""
        shape = self._ints(f"heads_{heads}", 0, 0, heads, self._config.head_dim)
        split = self._graph.node("Reshape", [x, shape])
        return self._graph.node("Transpose", [split], perm=[0, 2, 1, 3])

    def _rotated(self, x: str, angles: tuple[str, str]) -> str:
        node = self._graph.node
        low, high = self._graph.nodes("Split", [x], outputs=("", ""), axis=-1, num_outputs=2)
        turned = node("Concat", [node("Neg", [high]), low], axis=-1)
        return node("Add", [node("Mul", [x, angles[0]]), node("Mul", [turned, angles[1]])])

    def _repeated(self, x: str) -> str:
        """Return keys or values of each kv head once for every head that shares it."""
        config, node = self._config, self._graph.node
        times = config.heads // config.kv_heads
        if times == 1:
            return x
        spread = node("Unsqueeze", [x, self._ints("group_axis", 2)])
        tiled = node("Tile", [spread, self._ints("times", 1, 1, times, 1, 1)])
        # The past's length is free, so the two head axes are merged by leaving it open.
        shape = self._ints("every_head", 0, config.heads, -1, config.head_dim)
        return node("Reshape", [tiled, shape])

    def _norm(self, x: str, norm: DecoderNorm, name: str) -> str:
        weights = [self._weight(f"{name}.scale", norm.scale)]
        operator = "SimplifiedLayerNormalization"
        if norm.shift is not None:
            operator = "LayerNormalization"
            weights.append(self._weight(f"{name}.shift", norm.shift))
        return self._graph.node(operator, [x, *weights], epsilon=self._config.epsilon, axis=-1)

    def _linear(self, x: str, linear: Linear, name: str) -> str:
        weight = self._weight(name, np.ascontiguousarray(linear.weight.floats().T))
        product = self._graph.node("MatMul", [x, weight])
        if linear.bias is None:
            return product
        return self._graph.node("Add", [product, self._weight(f"{name}.bias", linear.bias)])

    def _index(self, value: int) -> str:
        return self._graph.constant(f"index_{value}", np.array(value, np.int64))

    def _ints(self, name: str, *values: int) -> str:
        return self._graph.constant(name, np.array(values, np.int64))

    def _weight(self, name: str, array: NDArray[np.generic]) -> str:
        self._arrays.setdefault(name, array)
        return name
