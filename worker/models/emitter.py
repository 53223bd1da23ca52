"""What the ragged and the padded graph of an encoder have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Literal

import numpy as np
import onnx

from worker.models.architecture import EncoderConfig, Head
from worker.models.graph import MICROSOFT_DOMAIN, GraphBuilder
from worker.models.quantize import ACCURACY_LEVEL, BITS, BLOCK

Precision = Literal["fp32", "int8"]


class EncoderEmitter(ABC):
    """Emits one post-norm encoder; subclasses know how tokens are laid out."""

    def __init__(
        self,
        config: EncoderConfig,
        head: Head,
        tensors: Mapping[str, onnx.TensorProto],
        precision: Precision,
    ) -> None:
        self.graph = GraphBuilder(f"{config.family}-{config.layers}")
        self.config = config
        self.head = head
        self.precision = precision
        self._tensors = tensors

    def emit(self, answer: str) -> GraphBuilder:
        """Emit the whole graph, whose output is called ``answer``, and return it."""
        x = self.embed()
        for index in range(self.config.layers):
            prefix = f"layer{index}."
            mixed = self.attend(self.affine(x, prefix + "qkv"))
            x = self.project_and_norm(mixed, x, prefix + "attended")
            wide = self.activate(x, prefix + "up")
            x = self.project_and_norm(wide, x, prefix + "down")
        self._answer(self.pool(x), answer)
        return self.graph

    @abstractmethod
    def embed(self) -> str:
        """Emit the normalised sum of word and position embeddings."""

    @abstractmethod
    def attend(self, qkv: str) -> str:
        """Emit self-attention over packed projections."""

    @abstractmethod
    def activate(self, x: str, name: str) -> str:
        """Emit the affine map ``name`` of ``x`` and its activation."""

    @abstractmethod
    def project_and_norm(self, x: str, residual: str, name: str) -> str:
        """Emit layer norm(``x`` @ weight + bias + residual) for the map ``name``."""

    @abstractmethod
    def pool(self, x: str) -> str:
        """Emit the pooled state, one row a sequence."""

    def weight(self, name: str) -> str:
        """Refer to the weight called ``name``."""
        return self.graph.external(self._tensors[name])

    def norm_of(self, name: str) -> tuple[str, str]:
        """Refer to scale and shift of the norm that follows the map ``name``."""
        norm = name.replace("down", "output") + "_norm"
        return self.weight(f"{norm}.scale"), self.weight(f"{norm}.shift")

    def affine(self, x: str, name: str) -> str:
        """Emit ``x @ weight + bias``."""
        if self.precision == "int8":
            return self.multiply(x, name, bias=True)
        return self.graph.node("Add", [self.multiply(x, name), self.weight(f"{name}.bias")])

    def multiply(self, x: str, name: str, *, bias: bool = False) -> str:
        """Emit ``x @ weight`` in the graph's precision; only 8-bit products take the bias along."""
        if self.precision == "fp32":
            return self.graph.node("MatMul", [x, self.weight(f"{name}.weight")])
        blocks = self._tensors[f"{name}.blocks"]
        inputs = [x, self.weight(f"{name}.blocks"), self.weight(f"{name}.scales")]
        if bias:
            inputs += ["", "", self.weight(f"{name}.bias")]
        return self.graph.node(
            "MatMulNBits",
            inputs,
            domain=MICROSOFT_DOMAIN,
            K=int(blocks.dims[1] * BLOCK),
            N=int(blocks.dims[0]),
            bits=BITS,
            block_size=BLOCK,
            accuracy_level=ACCURACY_LEVEL,
        )

    def _answer(self, pooled: str, answer: str) -> None:
        if self.head.dense is not None:
            product = self.graph.node("MatMul", [pooled, self.weight("head.dense.weight")])
            dense = self.graph.node("Add", [product, self.weight("head.dense.bias")])
            pooled = self.graph.node(self.head.dense_activation.capitalize(), [dense])
        if self.head.output is not None:
            product = self.graph.node("MatMul", [pooled, self.weight("head.output.weight")])
            bias = self.weight("head.output.bias")
            self.graph.node("Add", [product, bias], output=answer)
            return
        axes = self.graph.constant("length_axis", np.array([1], np.int64))
        length = self.graph.node("ReduceL2", [pooled, axes], keepdims=1)
        smallest = self.graph.constant("smallest_length", np.array(1e-12, np.float32))
        length = self.graph.node("Max", [length, smallest])
        self.graph.node("Div", [pooled, length], output=answer)
