"""Parts of the tiny models' graphs: padded attention and means, and work that nobody needs."""

from __future__ import annotations

import numpy as np
from onnx import helper

from worker.models.graph import GraphBuilder, subgraph
from worker.models.manifest import TensorSpec


def busy_zero(graph: GraphBuilder, trips: str) -> str:
    """Add a Loop of ``trips`` (int64 scalar) small steps; return a float32 [1] that is 0."""
    body = subgraph(
        "busy",
        [
            helper.make_node("Identity", ["go"], ["go_on"]),
            helper.make_node("MatMul", ["state", "turn"], ["turned"]),
            helper.make_node("Tanh", ["turned"], ["next"]),
        ],
        [
            TensorSpec("step", "int64", ()),
            TensorSpec("go", "bool", ()),
            TensorSpec("state", "float32", (16, 16)),
        ],
        [TensorSpec("go_on", "bool", ()), TensorSpec("next", "float32", (16, 16))],
        [("turn", np.eye(16, dtype=np.float32)[::-1].copy())],
    )
    start = graph.constant("busy_start", np.full((16, 16), 0.5, np.float32))
    always = graph.constant("busy_go", np.array(True))
    state = graph.node("Loop", [trips, always, start], body=body)
    axes = graph.constant("busy_axes", np.array([0, 1], np.int64))
    total = graph.node("ReduceSum", [state, axes], keepdims=0)
    flat = graph.node("Reshape", [total, graph.constant("busy_one", np.array([1], np.int64))])
    return graph.node("Mul", [flat, graph.constant("busy_nothing", np.zeros(1, np.float32))])


def padded_attention(graph: GraphBuilder, packed: str, heads: int, hidden: int) -> str:
    """Add multi-head attention over ``packed`` [B, S, 3H] under ``attention_mask``."""
    size = hidden // heads
    shape = graph.constant("split_shape", np.array([0, 0, 3, heads, size], np.int64))
    parts = graph.node("Transpose", [graph.node("Reshape", [packed, shape])], perm=[2, 0, 3, 1, 4])
    q, k, v = (
        graph.node("Gather", [parts, graph.constant(f"part_{i}", np.array(i, np.int64))], axis=0)
        for i in range(3)
    )
    scores = graph.node("MatMul", [q, graph.node("Transpose", [k], perm=[0, 1, 3, 2])])
    scale = graph.constant("scale", np.array(1 / np.sqrt(size), np.float32))
    scaled = graph.node("Mul", [scores, scale])
    seen = graph.node("Cast", ["attention_mask"], to=9)
    axes = graph.constant("mask_axes", np.array([1, 2], np.int64))
    seen = graph.node("Unsqueeze", [seen, axes])
    lowest = graph.constant("lowest", np.array(-1e9, np.float32))
    weights = graph.node("Softmax", [graph.node("Where", [seen, scaled, lowest])], axis=-1)
    mixed = graph.node("Transpose", [graph.node("MatMul", [weights, v])], perm=[0, 2, 1, 3])
    joined = graph.constant("joined_shape", np.array([0, 0, hidden], np.int64))
    return graph.node("Reshape", [mixed, joined])


def padded_mean(graph: GraphBuilder, x: str) -> str:
    """Add the mean of ``x`` [B, S, H] over the positions that ``attention_mask`` allows."""
    last = graph.constant("last_axis", np.array([2], np.int64))
    second = graph.constant("second_axis", np.array([1], np.int64))
    mask = graph.node("Unsqueeze", [graph.node("Cast", ["attention_mask"], to=1), last])
    total = graph.node("ReduceSum", [graph.node("Mul", [x, mask]), second], keepdims=0)
    return graph.node("Div", [total, graph.node("ReduceSum", [mask, second], keepdims=0)])
