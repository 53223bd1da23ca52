"""The padded graph: ``[batch, seq]`` with a mask, standard operators only, loads in any runtime."""

from __future__ import annotations

import math

import numpy as np
import onnx

from worker.models.emitter import EncoderEmitter


class PaddedEmitter(EncoderEmitter):
    """Emits an encoder over ``input_ids`` and ``attention_mask``, both [batch, seq]."""

    _mask = ""
    _bias = ""

    def embed(self) -> str:
        words = self.graph.node("Gather", [self.weight("words"), "input_ids"])
        zero = self.graph.constant("zero", np.array([0], np.int64))
        length = self.graph.node("Shape", ["input_ids"], start=1, end=2)
        places = self.graph.node("Slice", [self.weight("positions"), zero, length, zero])
        self._mask = self._additive_mask()
        if "distances" in self._tensors:
            self._mask = self.graph.node("Add", [self._mask, self._distance_bias(length)])
        total = self.graph.node("Add", [words, places])
        return self._norm(total, self.weight("norm.scale"), self.weight("norm.shift"))

    def attend(self, qkv: str) -> str:
        heads, hidden = self.config.heads, self.config.hidden
        widths = self.graph.constant("qkv_widths", np.array([hidden] * 3, np.int64))
        q, k, v = self.graph.nodes("Split", [qkv, widths], outputs=("", "", ""), axis=-1)
        query = self._split_heads(q, [0, 2, 1, 3])
        key = self._split_heads(k, [0, 2, 3, 1])
        scores = self.graph.node("MatMul", [query, key])
        scale = np.array(1 / math.sqrt(hidden // heads), np.float32)
        scores = self.graph.node("Mul", [scores, self.graph.constant("scale", scale)])
        scores = self.graph.node("Add", [scores, self._mask])
        weights = self.graph.node("Softmax", [scores], axis=-1)
        mixed = self.graph.node("MatMul", [weights, self._split_heads(v, [0, 2, 1, 3])])
        joined = self.graph.node("Transpose", [mixed], perm=[0, 2, 1, 3])
        shape = self.graph.constant("joined_shape", np.array([0, 0, hidden], np.int64))
        return self.graph.node("Reshape", [joined, shape])

    def activate(self, x: str, name: str) -> str:
        return self.graph.node(self.config.activation.capitalize(), [self.affine(x, name)])

    def project_and_norm(self, x: str, residual: str, name: str) -> str:
        total = self.graph.node("Add", [self.affine(x, name), residual])
        return self._norm(total, *self.norm_of(name))

    def pool(self, x: str) -> str:
        second = self.graph.constant("second_axis", np.array([1], np.int64))
        if self.head.pooling == "first":
            zero = self.graph.constant("first_token", np.array(0, np.int64))
            return self.graph.node("Gather", [x, zero], axis=1)
        last = self.graph.constant("last_axis", np.array([2], np.int64))
        seen = self.graph.node("Cast", ["attention_mask"], to=onnx.TensorProto.FLOAT)
        column = self.graph.node("Unsqueeze", [seen, last])
        total = self.graph.node(
            "ReduceSum", [self.graph.node("Mul", [x, column]), second], keepdims=0
        )
        count = self.graph.node("ReduceSum", [column, second], keepdims=0)
        return self.graph.node("Div", [total, count])

    def _additive_mask(self) -> str:
        """Emit [batch, 1, 1, seq]: 0 where a token is, the lowest float where padding is."""
        axes = self.graph.constant("mask_axes", np.array([1, 2], np.int64))
        seen = self.graph.node("Cast", ["attention_mask"], to=onnx.TensorProto.BOOL)
        seen = self.graph.node("Unsqueeze", [seen, axes])
        nothing = self.graph.constant("nothing", np.array(0, np.float32))
        lowest = np.array(np.finfo(np.float32).min / 2, np.float32)
        return self.graph.node("Where", [seen, nothing, self.graph.constant("lowest", lowest)])

    def _distance_bias(self, length: str) -> str:
        """Emit [heads, seq, seq]: the distance table at key - query + M - 1."""
        graph = self.graph
        start = graph.constant("start", np.array(0, np.int64))
        step = graph.constant("step", np.array(1, np.int64))
        count = graph.node("Squeeze", [length])
        index = graph.node("Range", [start, count, step])
        column = graph.node("Unsqueeze", [index, graph.constant("one", np.array([1], np.int64))])
        middle = graph.constant("middle", np.array(self.config.max_tokens - 1, np.int64))
        place = graph.node("Add", [graph.node("Sub", [index, column]), middle])
        return graph.node("Gather", [self.weight("distances"), place], axis=1)

    def _split_heads(self, x: str, order: list[int]) -> str:
        heads, hidden = self.config.heads, self.config.hidden
        split = np.array([0, 0, heads, hidden // heads], np.int64)
        shaped = self.graph.node("Reshape", [x, self.graph.constant("split_shape", split)])
        return self.graph.node("Transpose", [shaped], perm=order)

    def _norm(self, x: str, scale: str, shift: str) -> str:
        return self.graph.node(
            "LayerNormalization", [x, scale, shift], axis=-1, epsilon=self.config.epsilon
        )
