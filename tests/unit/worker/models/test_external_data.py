"""Which files a graph names, and that they lie in its folder."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, helper

from tests.unit.worker import graphs
from worker.engine import Session
from worker.errors import ModelLoadError
from worker.models.external_data import external_files


def tensor(location: str, *, flipped: bool = False) -> TensorProto:
    made = TensorProto(
        name="w", data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL
    )
    made.external_data.add(key="offset", value="0")
    made.external_data.add(key="location", value=location)
    if flipped:
        # Another writer's order of fields: the value stands before its key.
        entry = made.external_data[1].SerializeToString()
        key = b"\x0a\x08location"
        assert entry.startswith(key)
        raw = made.SerializeToString()
        return TensorProto.FromString(raw.replace(entry, entry[len(key) :] + key))
    return made


def everywhere() -> ModelProto:
    """A model with external tensors wherever one can be."""
    inner = GraphProto(initializer=[tensor("subgraph")])
    node = NodeProto(
        op_type="X",
        attribute=[
            AttributeProto(name="t", t=tensor("attribute")),
            AttributeProto(name="ts", tensors=[tensor("attributes")]),
            AttributeProto(name="g", g=inner),
            AttributeProto(name="gs", graphs=[GraphProto(initializer=[tensor("subgraphs")])]),
        ],
    )
    model = ModelProto(graph=GraphProto(node=[node], initializer=[tensor("weights")]))
    sparse = model.graph.sparse_initializer.add()
    sparse.values.CopyFrom(tensor("sparse values"))
    sparse.indices.CopyFrom(tensor("sparse indices"))
    sparse_attribute = model.graph.node[0].attribute.add(name="s")
    sparse_attribute.sparse_tensor.values.CopyFrom(tensor("sparse attribute"))
    model.graph.node[0].attribute.add(name="ss").sparse_tensors.add().values.CopyFrom(
        tensor("sparse attributes")
    )
    model.functions.add(name="f").node.add().attribute.add(name="t").t.CopyFrom(tensor("function"))
    model.functions[0].attribute_proto.add(name="d").t.CopyFrom(tensor("default"))
    training = model.training_info.add()
    training.initialization.initializer.append(tensor("initialization"))
    training.algorithm.initializer.append(tensor("algorithm"))
    return model


def test_names_are_found_wherever_a_tensor_can_be() -> None:
    found = external_files(everywhere().SerializeToString())
    assert found == (
        *("algorithm", "attribute", "attributes", "default", "function", "initialization"),
        *("sparse attribute", "sparse attributes", "sparse indices", "sparse values"),
        *("subgraph", "subgraphs", "weights"),
    )


def test_the_order_of_fields_hides_nothing() -> None:
    model = ModelProto(graph=GraphProto(initializer=[tensor("/etc/passwd", flipped=True)]))
    raw = model.SerializeToString()
    entry = b"\x12\x0b/etc/passwd\x0a\x08location"
    standard = b"\x0a\x08location\x12\x0b/etc/passwd"
    assert external_files(raw.replace(standard, entry)) == ("/etc/passwd",)


def test_a_field_number_that_another_reader_would_cut_short_is_refused() -> None:
    graph = GraphProto(initializer=[tensor("x")]).SerializeToString()
    # 7 << 3 | 2 with a bit beyond the 32 that a reader may keep.
    tag = bytes([0x3A | 0x80, 0x80, 0x80, 0x80, 0x10])
    with pytest.raises(ValueError, match="field"):
        external_files(tag + bytes([len(graph)]) + graph)


@given(st.binary(max_size=200))
def test_other_bytes_are_refused_or_name_nothing_dangerous(data: bytes) -> None:
    try:
        names = external_files(data)
    except ValueError:
        return
    assert all(isinstance(name, str) for name in names)


def raw_of(value: Any) -> bytes:
    """A string as it is on the wire; what is no UTF-8 comes as bytes."""
    return value if isinstance(value, bytes) else str(value).encode()


@given(st.data())
def test_what_the_library_reads_is_what_is_found(data: st.DataObject) -> None:
    """A changed graph that protobuf still reads names no file that is not found."""
    raw = bytearray(everywhere().SerializeToString())
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    changed = bytes(raw)
    try:
        model = ModelProto.FromString(changed)
    except Exception:
        return
    expected = {
        raw_of(entry.value)
        for each in model.graph.initializer
        for entry in each.external_data
        if entry.key == "location"
    }
    try:
        found = {name.encode("utf-8", "surrogateescape") for name in external_files(changed)}
    except ValueError:
        return
    assert expected <= found


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder `model` for a graph, beside a weight file that it must not reach."""
    (tmp_path / "model").mkdir()
    (tmp_path / "secret.bin").write_bytes(np.ones(4, "<f4").tobytes())
    return tmp_path


def graph_naming(folder: Path, location: str) -> Path:
    weights = tensor(location)
    weights.external_data.add(key="length", value="16")
    node = helper.make_node("Add", ["x", "w"], ["y"])
    value = graphs.value
    proto = graphs.model(
        [node], [value("x", TensorProto.FLOAT, 4)], [value("y", TensorProto.FLOAT, 4)], [weights]
    )
    path = folder / "graph.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def test_weights_beside_the_graph_load(outside: Path) -> None:
    folder = outside / "model"
    shutil.copy(outside / "secret.bin", folder / "w.bin")
    (folder / "linked.bin").symlink_to("w.bin")
    for name in ("w.bin", "./w.bin", "linked.bin"):
        session = Session(graph_naming(folder, name), share_weights=False)
        assert session.run({"x": np.ones(4, np.float32)})["y"].tolist() == [2.0] * 4


@pytest.mark.parametrize("kind", ["parent", "absolute", "link", "linked folder", "backslash"])
def test_weights_elsewhere_are_refused_before_anything_is_opened(outside: Path, kind: str) -> None:
    folder = outside / "model"
    (folder / "link.bin").symlink_to(outside / "secret.bin")
    (folder / "below").symlink_to(outside)
    location = {
        "parent": "../secret.bin",
        "absolute": str(outside / "secret.bin"),
        "link": "link.bin",
        "linked folder": "below/secret.bin",
        "backslash": "..\\secret.bin",
    }[kind]
    for share in (False, True):
        with pytest.raises(ModelLoadError, match="is not inside"):
            Session(graph_naming(folder, location), share_weights=share, cache=outside / "cache")


def test_addresses_of_memory_are_no_files(outside: Path) -> None:
    graph = graph_naming(outside / "model", "*/_ORT_MEM_ADDR_/*")
    with pytest.raises(ModelLoadError, match="there is no such file"):
        Session(graph, share_weights=False)
