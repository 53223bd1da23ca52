"""The paged graph of a decoder: tokens of all sequences end to end, ``[T, hidden]``.

Keys and values live in the engine's arena, not in the graph; the head runs on the rows that
``last_rows`` names. A layer is four matrix products, the attention and a norm before each half; a
quantised LLaMA's layer is one node.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import onnx
from numpy.typing import NDArray

from worker.decode import LONE_ROWS
from worker.models.blocks import Matrix, eight_bits
from worker.models.decoder import Decoder, DecoderLayer, DecoderNorm, Linear
from worker.models.graph import MICROSOFT_DOMAIN, ORCHID_DOMAIN, Attribute, GraphBuilder
from worker.models.manifest import TensorSpec
from worker.models.packing import gated_order, pack
from worker.models.weights import PlacedWeights, place_weights

DecoderPrecision = Literal["fp32", "int8", "q4"]


def paged_inputs(decoder: Decoder) -> tuple[TensorSpec, ...]:
    """Return the inputs of a paged graph."""
    inputs = (
        TensorSpec("input_ids", "int64", (-1,)),
        TensorSpec("row_offsets", "int32", (-1,)),
        TensorSpec("past_lengths", "int32", (-1,)),
        TensorSpec("block_table", "int32", (-1, -1)),
        TensorSpec("step", "int64", (1,)),
        TensorSpec("last_rows", "int64", (-1,)),
    )
    learned = (TensorSpec("positions", "int64", (-1,)),) if decoder.positions is not None else ()
    return inputs + learned


def paged_outputs(decoder: Decoder) -> tuple[TensorSpec, ...]:
    """Return the output of a paged graph: ``logits``, one row for each of ``last_rows``."""
    return (TensorSpec("logits", "float32", (-1, decoder.config.vocabulary)),)


class PagedEmitter:
    """Emits one decoder in one precision.

    ``q4`` multiplies the blocks the weights already have, without loss; dense matrices become 8-bit
    blocks. ``int8`` makes 8-bit blocks of everything.
    """

    def __init__(self, decoder: Decoder, precision: DecoderPrecision) -> None:
        self._decoder = decoder
        self._config = decoder.config
        self._precision = precision
        self._graph = GraphBuilder(f"{decoder.config.architecture}-{decoder.config.layers}")
        self._arrays: dict[str, NDArray[np.generic]] = {}
        self._shared: dict[str, NDArray[np.generic]] = {}

    def emit(self, weights: str, shared: str) -> tuple[onnx.ModelProto, PlacedWeights]:
        """Return the model and what belongs into the file ``weights``.

        The word embeddings are looked for in the file ``shared``; see ``shared_weights``.
        """
        x, branch = self._embed(), ""
        fused = self._fuses()
        for index, layer in enumerate(self._decoder.layers):
            prefix = f"layer{index}."
            if fused:
                x = self._fused_layer(prefix, index, layer, x)
            else:
                x, branch = self._layer(prefix, index, layer, x, branch)
        if fused:
            self._fused_head(x)
        else:
            self._head(x, branch)
        own = place_weights(self._arrays, weights)
        for tensor in own.tensors.values():
            self._graph.external(tensor)
        for tensor in shared_weights(self._decoder, shared).tensors.values():
            self._graph.external(tensor)
        inputs, outputs = paged_inputs(self._decoder), paged_outputs(self._decoder)
        # Products of blocks sum a single row as they do several; those of floats may not.
        metadata = {} if self._precision == "fp32" else {LONE_ROWS: "1"}
        return self._graph.build(inputs, outputs, metadata), own

    def _embed(self) -> str:
        words = self._graph.node("Gather", ["words", "input_ids"])
        if self._decoder.positions is None:
            return words
        places = self._graph.node(
            "Gather", [self._weight("places", self._decoder.positions), "positions"]
        )
        return self._graph.node("Add", [words, places])

    def _layer(
        self, prefix: str, index: int, layer: DecoderLayer, x: str, branch: str
    ) -> tuple[str, str]:
        """Emit a layer of the sum ``x`` + ``branch``; return the sum's parts after it."""
        x, normed = self._norm(x, branch, layer.attention_norm, prefix + "attention_norm")
        attended = self._attention(self._linear(normed, layer.qkv, prefix + "qkv"), index)
        branch = self._linear(attended, layer.attended, prefix + "attended")
        x, normed = self._norm(x, branch, layer.mlp_norm, prefix + "mlp_norm")
        if self._config.architecture == "llama":
            wide = self._linear(normed, layer.up, prefix + "up")
            active = self._graph.node("SwiGlu", [wide], domain=ORCHID_DOMAIN)
        else:
            active = self._gelu(normed, layer.up, prefix + "up")
        return x, self._linear(active, layer.down, prefix + "down")

    def _fuses(self) -> bool:
        """Tell whether products take everything around them in; they add no bias."""
        linears = [
            linear
            for layer in self._decoder.layers
            for linear in (layer.qkv, layer.attended, layer.up, layer.down)
        ]
        return (
            self._precision != "fp32"
            and self._config.architecture == "llama"
            and all(linear.bias is None for linear in linears)
        )

    def _fused_layer(self, prefix: str, index: int, layer: DecoderLayer, x: str) -> str:
        gated = layer.up.weight.rows(gated_order(self._config.intermediate))
        return self._graph.node(
            "DecoderLayer",
            [
                x,
                *_STEP_INPUTS,
                self._weight(f"{prefix}attention_norm", layer.attention_norm.scale),
                self._blocks(layer.qkv.weight, prefix + "qkv"),
                self._blocks(layer.attended.weight, prefix + "attended"),
                self._weight(f"{prefix}mlp_norm", layer.mlp_norm.scale),
                self._blocks(gated, prefix + "up"),
                self._blocks(layer.down.weight, prefix + "down"),
            ],
            domain=ORCHID_DOMAIN,
            epsilon=float(self._config.epsilon),
            **self._attention_attributes(index),
        )

    def _fused_head(self, x: str) -> None:
        rows = self._graph.node("Gather", [x, "last_rows"])
        head = self._decoder.head
        matrix = self._decoder.words if head is None else head
        self._block_product(rows, matrix, "head", norm=self._decoder.norm, output="logits")

    def _attention(self, packed: str, index: int) -> str:
        return self._graph.node(
            "PagedAttention",
            [packed, *_STEP_INPUTS],
            domain=ORCHID_DOMAIN,
            **self._attention_attributes(index),
        )

    def _attention_attributes(self, index: int) -> dict[str, Attribute]:
        return {
            "num_heads": self._config.heads,
            "kv_num_heads": self._config.kv_heads,
            "layer": index,
            "rope_theta": float(self._config.rope_theta),
        }

    def _gelu(self, x: str, linear: Linear, name: str) -> str:
        inputs = [self._product(x, linear.weight, name)]
        if linear.bias is not None:
            inputs.append(self._weight(f"{name}.bias", linear.bias))
        return self._graph.node("FastGelu", inputs, domain=MICROSOFT_DOMAIN)

    def _head(self, x: str, branch: str) -> None:
        rows = [self._graph.node("Gather", [value, "last_rows"]) for value in (x, branch)]
        _, normed = self._norm(rows[0], rows[1], self._decoder.norm, "norm")
        head = self._decoder.head
        if self._precision == "fp32" and head is None:
            # The embeddings themselves: no second copy of them in the files.
            self._graph.node("Gemm", [normed, "words"], output="logits", transB=1)
            return
        matrix = self._decoder.words if head is None else head
        self._product(normed, matrix, "head", output="logits")

    def _norm(self, x: str, branch: str, norm: DecoderNorm, name: str) -> tuple[str, str]:
        """Return the sum of ``x`` and ``branch`` (empty for none) and its norm."""
        weights = [self._weight(f"{name}.scale", norm.scale)]
        plain, fused = "SimplifiedLayerNormalization", "SkipSimplifiedLayerNormalization"
        if norm.shift is not None:
            plain, fused = "LayerNormalization", "SkipLayerNormalization"
            weights.append(self._weight(f"{name}.shift", norm.shift))
        epsilon = self._config.epsilon
        if not branch:
            return x, self._graph.node(plain, [x, *weights], epsilon=epsilon, axis=-1)
        normed, total = f"{name}.normed", f"{name}.sum"
        self._graph.nodes(
            fused,
            [x, branch, *weights],
            outputs=(normed, f"{name}.mean", f"{name}.deviation", total),
            domain=MICROSOFT_DOMAIN,
            epsilon=epsilon,
        )
        return total, normed

    def _linear(self, x: str, linear: Linear, name: str) -> str:
        product = self._product(x, linear.weight, name)
        if linear.bias is None:
            return product
        return self._graph.node("Add", [product, self._weight(f"{name}.bias", linear.bias)])

    def _product(self, x: str, matrix: Matrix, name: str, output: str = "") -> str:
        if self._precision == "fp32":
            weight = np.ascontiguousarray(matrix.floats().T)
            return self._graph.node("MatMul", [x, self._weight(name, weight)], output=output)
        return self._block_product(x, matrix, name, output=output)

    def _block_product(
        self, x: str, matrix: Matrix, name: str, *, norm: DecoderNorm | None = None, output: str
    ) -> str:
        """Emit norm(``x``) times the transposed matrix."""
        inputs = [x, self._blocks(matrix, name)]
        attributes: dict[str, Attribute] = {"columns": matrix.shape[0]}
        if norm is not None:
            inputs.append(self._weight(f"{name}.norm", norm.scale))
            attributes["epsilon"] = float(self._config.epsilon)
        return self._graph.node(
            "BlockProduct", inputs, output=output, domain=ORCHID_DOMAIN, **attributes
        )

    def _blocks(self, matrix: Matrix, name: str) -> str:
        """Store a matrix in blocks: those it has, or eight bits."""
        keeps = matrix.form == "q8" or (self._precision == "q4" and matrix.form == "q4")
        blocks = matrix if keeps else eight_bits(matrix.floats())
        return self._weight(f"{name}.blocks", pack(blocks))

    def _weight(self, name: str, array: NDArray[np.generic]) -> str:
        self._arrays[name] = array
        return name


_STEP_INPUTS = ("row_offsets", "past_lengths", "block_table", "step")


def shared_weights(decoder: Decoder, location: str) -> PlacedWeights:
    """Return the word embeddings, which all precisions have in common, laid out in a file."""
    return place_weights({"words": decoder.words.floats()}, location)
