"""A small builder of ONNX graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from worker.models.manifest import TensorSpec

OPSET = 21
IR_VERSION = 10
ORCHID_DOMAIN = "orchid"
MICROSOFT_DOMAIN = "com.microsoft"

# An attribute of a node: whatever onnx.helper.make_attribute accepts.
Attribute = Any


class GraphBuilder:
    """Collects nodes and weights of one graph; values are referred to by name."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._nodes: list[onnx.NodeProto] = []
        self._initializers: dict[str, onnx.TensorProto] = {}
        self._counter = 0

    def constant(self, name: str, array: NDArray[Any]) -> str:
        """Store ``array`` inside the graph under ``name`` (once) and return the name."""
        if name not in self._initializers:
            self._initializers[name] = numpy_helper.from_array(np.asarray(array, order="C"), name)
        return name

    def external(self, tensor: onnx.TensorProto) -> str:
        """Refer to a weight whose bytes live in a file beside the graph; return its name."""
        self._initializers.setdefault(tensor.name, tensor)
        return str(tensor.name)

    def node(
        self,
        operator: str,
        inputs: Sequence[str],
        *,
        output: str = "",
        domain: str = "",
        **attributes: Attribute,
    ) -> str:
        """Append a node with one output and return the output's name."""
        return self.nodes(operator, inputs, outputs=(output,), domain=domain, **attributes)[0]

    def nodes(
        self,
        operator: str,
        inputs: Sequence[str],
        *,
        outputs: Sequence[str],
        domain: str = "",
        **attributes: Attribute,
    ) -> tuple[str, ...]:
        """Append a node with several outputs (empty names are filled in) and return their names."""
        self._counter += 1
        names = tuple(
            name or f"{operator.lower()}_{self._counter}" + (f"_{index}" if index else "")
            for index, name in enumerate(outputs)
        )
        self._nodes.append(
            helper.make_node(
                operator,
                list(inputs),
                list(names),
                name=f"{operator}_{self._counter}",
                domain=domain,
                **attributes,
            )
        )
        return names

    def build(
        self,
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
        metadata: Mapping[str, str] | None = None,
    ) -> onnx.ModelProto:
        """Return the finished model with the given signature and metadata."""
        graph = helper.make_graph(
            self._nodes,
            self._name,
            [_value_info(spec) for spec in inputs],
            [_value_info(spec) for spec in outputs],
            initializer=list(self._initializers.values()),
        )
        domains = {node.domain for node in _all_nodes(self._nodes)} - {""}
        imports = [helper.make_opsetid("", OPSET)]
        imports += [helper.make_opsetid(domain, 1) for domain in sorted(domains)]
        model = helper.make_model(
            graph, opset_imports=imports, ir_version=IR_VERSION, producer_name="orchid"
        )
        helper.set_model_props(model, dict(metadata or {}))
        return model


def subgraph(
    name: str,
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    weights: Sequence[tuple[str, NDArray[Any]]] = (),
) -> onnx.GraphProto:
    """Return a graph that can be a Loop's or If's body."""
    return helper.make_graph(
        list(nodes),
        name,
        [_value_info(spec) for spec in inputs],
        [_value_info(spec) for spec in outputs],
        initializer=[numpy_helper.from_array(array, label) for label, array in weights],
    )


def element_type(dtype: str) -> int:
    """Return the ONNX element type of a numpy dtype name or ``string``."""
    if dtype == "string":
        return int(TensorProto.STRING)
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


def dtype_name(element: int) -> str:
    """Return the numpy dtype name (or ``string``) of an ONNX element type."""
    if element == TensorProto.STRING:
        return "string"
    return str(np.dtype(helper.tensor_dtype_to_np_dtype(element)).name)


def write_graph(model: onnx.ModelProto, path: Path) -> None:
    """Write the model's bytes; the same graph always gives the same bytes."""
    path.write_bytes(model.SerializeToString(deterministic=True))


def _value_info(spec: TensorSpec) -> onnx.ValueInfoProto:
    shape = [f"{spec.name}_{axis}" if size < 0 else size for axis, size in enumerate(spec.shape)]
    return helper.make_tensor_value_info(spec.name, element_type(spec.dtype), shape)


def _all_nodes(nodes: Sequence[onnx.NodeProto]) -> list[onnx.NodeProto]:
    found = list(nodes)
    for node in nodes:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                found += _all_nodes(list(attribute.g.node))
    return found
