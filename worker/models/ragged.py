"""The ragged graph: tokens of all sequences end to end, ``[T, hidden]``, no padding anywhere.

Fused operators keep the passes over memory few: a layer is four matrix products, the attention,
two skip-layer-norms and one bias-gelu.
"""

from __future__ import annotations

import numpy as np

from worker.models.emitter import EncoderEmitter
from worker.models.graph import MICROSOFT_DOMAIN, ORCHID_DOMAIN


class RaggedEmitter(EncoderEmitter):
    """Emits an encoder over ``input_ids`` [T] and ``row_offsets`` [S+1]."""

    def embed(self) -> str:
        words = self.graph.node("Gather", [self.weight("words"), "input_ids"])
        index = self.graph.node(
            "RaggedPositions", ["input_ids", "row_offsets"], domain=ORCHID_DOMAIN
        )
        places = self.graph.node("Gather", [self.weight("positions"), index])
        return self._skip_norm(
            [words, places, self.weight("norm.scale"), self.weight("norm.shift")]
        )

    def affine(self, x: str, name: str) -> str:
        if self.precision == "int8":
            return self.multiply(x, name, bias=True)
        weights = [self.weight(f"{name}.weight"), self.weight(f"{name}.bias")]
        return self.graph.node("Gemm", [x, *weights])

    def attend(self, qkv: str) -> str:
        inputs = [qkv, "row_offsets"]
        if "distances" in self._tensors:
            inputs.append(self.weight("distances"))
        return self.graph.node(
            "RaggedAttention", inputs, domain=ORCHID_DOMAIN, num_heads=self.config.heads
        )

    def activate(self, x: str, name: str) -> str:
        if self.config.activation == "relu":
            return self.graph.node("Relu", [self.affine(x, name)])
        product, bias = self.multiply(x, name), self.weight(f"{name}.bias")
        return self.graph.node("BiasGelu", [product, bias], domain=MICROSOFT_DOMAIN)

    def project_and_norm(self, x: str, residual: str, name: str) -> str:
        scale, shift = self.norm_of(name)
        bias = self.weight(f"{name}.bias")
        return self._skip_norm([self.multiply(x, name), residual, scale, shift, bias])

    def pool(self, x: str) -> str:
        if self.head.pooling == "mean":
            return self.graph.node("RaggedMean", [x, "row_offsets"], domain=ORCHID_DOMAIN)
        starts = self.graph.constant("first_row", np.array([0], np.int64))
        ends = self.graph.constant("last_row", np.array([-1], np.int64))
        first = self.graph.node("Slice", ["row_offsets", starts, ends])
        return self.graph.node("Gather", [x, first])

    def _skip_norm(self, inputs: list[str]) -> str:
        return self.graph.node(
            "SkipLayerNormalization",
            inputs,
            domain=MICROSOFT_DOMAIN,
            epsilon=self.config.epsilon,
        )
