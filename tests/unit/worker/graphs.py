"""Tiny ONNX graphs for the engine's tests."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, checker, helper, save
from onnx.helper import make_node, make_tensor_value_info

OPSETS = [helper.make_opsetid("", 17), helper.make_opsetid("orchid", 1)]


def value(name: str, kind: int, *shape: int | str | None) -> ValueInfoProto:
    return make_tensor_value_info(name, kind, list(shape))


def model(
    nodes: list[NodeProto],
    inputs: list[ValueInfoProto],
    outputs: list[ValueInfoProto],
    initializers: list[TensorProto] | None = None,
) -> ModelProto:
    graph = helper.make_graph(nodes, "test", inputs, outputs, initializers or [])
    return helper.make_model(graph, opset_imports=OPSETS, ir_version=8)


def write(path: Path, proto: ModelProto) -> Path:
    if all(node.domain == "" for node in proto.graph.node):
        checker.check_model(proto)
    save(proto, str(path))
    return path


def identity(path: Path, kind: int, *shape: int | str | None) -> Path:
    nodes = [make_node("Identity", ["x"], ["y"])]
    return write(path, model(nodes, [value("x", kind, *shape)], [value("y", kind, *shape)]))


def adder(path: Path) -> Path:
    """y = a + b over [n, 3] floats."""
    nodes = [make_node("Add", ["a", "b"], ["y"])]
    kind = TensorProto.FLOAT
    inputs = [value("a", kind, "n", 3), value("b", kind, "n", 3)]
    return write(path, model(nodes, inputs, [value("y", kind, "n", 3)]))


def long_loop(path: Path) -> Path:
    """y = x after `count` rounds of a loop: as slow as one likes, and interruptible."""
    body = helper.make_graph(
        [
            make_node("Identity", ["keep"], ["keep_out"]),
            make_node("Add", ["carried", "one"], ["carried_out"]),
        ],
        "body",
        [
            value("round", TensorProto.INT64),
            value("keep", TensorProto.BOOL),
            value("carried", TensorProto.FLOAT, "n"),
        ],
        [value("keep_out", TensorProto.BOOL), value("carried_out", TensorProto.FLOAT, "n")],
    )
    nodes = [make_node("Loop", ["count", "", "x"], ["y"], body=body)]
    return write(
        path,
        model(
            nodes,
            [value("x", TensorProto.FLOAT, "n"), value("count", TensorProto.INT64)],
            [value("y", TensorProto.FLOAT, "n")],
            [helper.make_tensor("one", TensorProto.FLOAT, [], [1.0])],
        ),
    )


def attention(
    path: Path, heads: int, head_dim: int, *, bias_reach: int = 0, scale: float | None = None
) -> Path:
    width = heads * head_dim
    inputs = [
        value("qkv", TensorProto.FLOAT, "tokens", 3 * width),
        value("row_offsets", TensorProto.INT32, "sequences_plus_one"),
    ]
    if bias_reach:
        inputs.append(value("bias", TensorProto.FLOAT, heads, 2 * bias_reach - 1))
    names = ["qkv", "row_offsets"] + (["bias"] if bias_reach else [])
    nodes = [
        make_node("RaggedAttention", names, ["y"], domain="orchid", num_heads=heads, scale=scale)
    ]
    return write(path, model(nodes, inputs, [value("y", TensorProto.FLOAT, "tokens", width)]))


def pooling(path: Path, width: int) -> Path:
    """positions of input_ids, and the mean of x for each sequence."""
    nodes = [
        make_node("RaggedPositions", ["input_ids", "row_offsets"], ["positions"], domain="orchid"),
        make_node("RaggedMean", ["x", "row_offsets"], ["mean"], domain="orchid"),
    ]
    inputs = [
        value("input_ids", TensorProto.INT64, "tokens"),
        value("x", TensorProto.FLOAT, "tokens", width),
        value("row_offsets", TensorProto.INT32, "sequences_plus_one"),
    ]
    outputs = [
        value("positions", TensorProto.INT64, "tokens"),
        value("mean", TensorProto.FLOAT, "sequences", width),
    ]
    return write(path, model(nodes, inputs, outputs))


def heavy_chain(folder: Path, layers: int, width: int) -> Path:
    """A chain of matrix products of [n, width] floats, its weights in a file beside the graph."""
    weights = folder / "weights.bin"
    rng = np.random.default_rng(0)
    tensors = []
    with weights.open("wb") as file:
        for layer in range(layers):
            matrix = rng.normal(0, 0.02, (width, width)).astype(np.float32)
            tensor = TensorProto(
                name=f"w{layer}",
                data_type=TensorProto.FLOAT,
                dims=matrix.shape,
                data_location=TensorProto.EXTERNAL,
            )
            for key, entry in (
                ("location", weights.name),
                ("offset", str(file.tell())),
                ("length", str(matrix.nbytes)),
            ):
                tensor.external_data.add(key=key, value=entry)
            file.write(matrix.tobytes())
            tensors.append(tensor)
    nodes = [
        make_node("MatMul", [f"x{i}" if i else "x", f"w{i}"], [f"x{i + 1}"]) for i in range(layers)
    ]
    nodes[-1].output[0] = "y"
    inputs = [value("x", TensorProto.FLOAT, "n", width)]
    outputs = [value("y", TensorProto.FLOAT, "n", width)]
    path = folder / "heavy.onnx"
    path.write_bytes(model(nodes, inputs, outputs, tensors).SerializeToString())
    return path
