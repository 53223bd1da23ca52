"""The paged graph of a decoder: tokens of all sequences end to end, ``[T, hidden]``.

Keys and values live in the engine's arena, not in the graph; the head runs on the rows that
``last_rows`` names. A layer is four matrix products, the attention and a fused norm before each
half.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import onnx
from numpy.typing import NDArray

from worker.models.blocks import BLOCK, Matrix
from worker.models.decoder import Decoder, DecoderLayer, DecoderNorm, Linear
from worker.models.graph import MICROSOFT_DOMAIN, ORCHID_DOMAIN, GraphBuilder
from worker.models.manifest import TensorSpec
from worker.models.quantize import ACCURACY_LEVEL, quantize
from worker.models.weights import PlacedWeights, place_weights

DecoderPrecision = Literal["fp32", "int8", "q4"]

_ZERO_POINT_4, _ZERO_POINT_8 = 8, 128


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

    ``q4`` multiplies the 4-bit blocks the weights already have, without loss; matrices of another
    form become 8-bit blocks. ``int8`` makes 8-bit blocks of everything.
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
        for index, layer in enumerate(self._decoder.layers):
            x, branch = self._layer(f"layer{index}.", index, layer, x, branch)
        self._head(x, branch)
        own = place_weights(self._arrays, weights)
        for tensor in own.tensors.values():
            self._graph.external(tensor)
        for tensor in shared_weights(self._decoder, shared).tensors.values():
            self._graph.external(tensor)
        inputs, outputs = paged_inputs(self._decoder), paged_outputs(self._decoder)
        return self._graph.build(inputs, outputs), own

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
        attended = self._graph.node(
            "PagedAttention",
            [self._linear(normed, layer.qkv, prefix + "qkv"), *_STEP_INPUTS],
            domain=ORCHID_DOMAIN,
            num_heads=self._config.heads,
            kv_num_heads=self._config.kv_heads,
            layer=index,
            rope_theta=float(self._config.rope_theta),
        )
        branch = self._linear(attended, layer.attended, prefix + "attended")
        x, normed = self._norm(x, branch, layer.mlp_norm, prefix + "mlp_norm")
        if self._config.architecture == "llama":
            wide = self._linear(normed, layer.up, prefix + "up")
            active = self._graph.node("SwiGlu", [wide], domain=ORCHID_DOMAIN)
        else:
            active = self._gelu(normed, layer.up, prefix + "up")
        return x, self._linear(active, layer.down, prefix + "down")

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
        if self._precision == "q4" and matrix.form == "q4":
            return self._product_of_4(x, matrix, name, output)
        return self._product_of_8(x, matrix, name, output)

    def _product_of_8(self, x: str, matrix: Matrix, name: str, output: str) -> str:
        if matrix.form == "q8" and matrix.scales is not None:
            values = (matrix.values.astype(np.int16) + _ZERO_POINT_8).astype(np.uint8)
            scales = matrix.scales
        else:
            blocks = quantize(np.ascontiguousarray(matrix.floats().T))
            values, scales = blocks.values, blocks.scales
        return self._blocks_product(x, matrix, name, output, 8, values, scales)

    def _product_of_4(self, x: str, matrix: Matrix, name: str, output: str) -> str:
        """Emit scale * (value - 8) in blocks, and the rest of a block's weights by its sum.

        A block's weights are scale * value + minimum = scale * (value - 8) + rest, and the rest
        is one number, so it multiplies the sum of the block's inputs.
        """
        if matrix.scales is None or matrix.minima is None:
            raise ValueError(f"expected 4-bit blocks, got a matrix of form {matrix.form}")
        values = np.asarray(matrix.values, np.uint8)
        packed = np.asarray(values[..., 0::2] | (values[..., 1::2] << 4), np.uint8)
        rest = matrix.minima + np.float32(_ZERO_POINT_4) * matrix.scales
        has_rest = bool(rest.any())
        product = self._blocks_product(
            x, matrix, name, "" if has_rest else output, 4, packed, matrix.scales
        )
        if not has_rest:
            return product
        weight = self._weight(f"{name}.rest", np.ascontiguousarray(rest.T))
        return self._graph.node(
            "AddBlockRest", [x, product, weight], output=output, domain=ORCHID_DOMAIN
        )

    def _blocks_product(
        self,
        x: str,
        matrix: Matrix,
        name: str,
        output: str,
        bits: int,
        values: NDArray[np.uint8],
        scales: NDArray[np.float32],
    ) -> str:
        outputs, inputs = matrix.shape
        weights = [self._weight(f"{name}.values", values)]
        weights.append(self._weight(f"{name}.scales", scales.reshape(-1)))
        return self._graph.node(
            "MatMulNBits",
            [x, *weights],
            output=output,
            domain=MICROSOFT_DOMAIN,
            K=inputs,
            N=outputs,
            bits=bits,
            block_size=BLOCK,
            accuracy_level=ACCURACY_LEVEL,
        )

    def _weight(self, name: str, array: NDArray[np.generic]) -> str:
        self._arrays[name] = array
        return name


_STEP_INPUTS = ("row_offsets", "past_lengths", "block_table", "step")


def shared_weights(decoder: Decoder, location: str) -> PlacedWeights:
    """Return the word embeddings, which all precisions have in common, laid out in a file."""
    return place_weights({"words": decoder.words.floats()}, location)
