"""Finished ONNX files become entries; what a graph cannot tell is asked for by name."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.unit.worker.models.encoder_builds import golden_encoder, write_encoder
from worker.engine import Session
from worker.models.errors import CheckpointError, ManifestError
from worker.models.importer import ImportOptions, import_model
from worker.models.manifest import load_manifest, save_manifest, verify
from worker.models.progress import Silent
from worker.models.repository import find_model
from worker.models.signature import read_signature
from worker.models.synthetic import (
    build_padded,
    build_synthetic,
    build_tensor_model,
    tiny_tokenizer,
)


@pytest.fixture
def padded(tmp_path: Path) -> Path:
    """A folder with a padded graph, its weights, tokenizer and config."""
    folder = tmp_path / "export"
    folder.mkdir()
    write_encoder(folder, golden_encoder("mpnet", "mean"), "padded")
    tiny_tokenizer().save(str(folder / "tokenizer.json"))
    document = {"model_type": "mpnet", "max_position_embeddings": 202}
    (folder / "config.json").write_text(json.dumps(document))
    return folder


def test_a_padded_export_becomes_a_classifier(tmp_path: Path, padded: Path) -> None:
    repository = tmp_path / "repository"
    manifest = import_model(padded, repository, ImportOptions(), Silent())
    assert load_manifest(repository / "export") == manifest
    assert verify(repository / "export") == []
    (variant,) = manifest.variants
    assert (manifest.task, variant.layout, variant.precision) == (
        "text-classification",
        "padded",
        "fp32",
    )
    assert variant.max_tokens == 200
    assert manifest.labels == ("class-0", "class-1", "class-2")
    assert {"model.onnx", "tokenizers/tokenizer.json"} <= set(manifest.files)


def test_external_weights_travel_along(tmp_path: Path) -> None:
    big = np.ones((200, 100), np.float32)
    model = helper.make_model(
        helper.make_graph(
            [helper.make_node("MatMul", ["x", "w"], ["y"])],
            "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 200])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 100])],
            [onnx.numpy_helper.from_array(big, "w")],
        ),
        opset_imports=[helper.make_opsetid("", 21)],
        ir_version=10,
    )
    source = tmp_path / "source"
    source.mkdir()
    onnx.save(
        model,
        str(source / "net.onnx"),
        save_as_external_data=True,
        location="net.data",
        size_threshold=0,
    )
    manifest = import_model(source / "net.onnx", tmp_path / "r", ImportOptions(), Silent())
    assert sorted(manifest.files) == ["net.data", "net.onnx"]
    answer = Session(tmp_path / "r" / "net" / "net.onnx").run({"x": np.ones((1, 200), np.float32)})
    assert answer["y"][0, 0] == 200
    (source / "net.data").unlink()
    with pytest.raises(CheckpointError, match=r"weight file net\.data"):
        import_model(source / "net.onnx", tmp_path / "r", ImportOptions(replace=True), Silent())


def test_any_graph_is_served_as_tensors(tmp_path: Path) -> None:
    source = build_tensor_model(tmp_path / "source") / "graph.onnx"
    options = ImportOptions(name="sum", version="7")
    manifest = import_model(source, tmp_path / "r", options, Silent())
    assert (manifest.name, manifest.version, manifest.task) == ("sum", "7", "tensor")
    assert manifest.primary_output == "sum"
    assert [spec.name for spec in manifest.variants[0].inputs] == ["a", "b"]


def test_a_folder_with_a_manifest_is_taken_over(tmp_path: Path) -> None:
    source = build_synthetic(tmp_path / "source")
    manifest = import_model(source, tmp_path / "r", ImportOptions(name="copy"), Silent())
    original = load_manifest(source)
    assert (manifest.name, manifest.files) == ("copy", original.files)
    assert verify(tmp_path / "r" / "copy") == []


@pytest.mark.parametrize(
    "name", ["..", "../out", "/out", "a/b", "a\\b", ".hidden", "a\0b", "a\nb", "\x1b[2J", "x" * 300]
)
@pytest.mark.parametrize("whose", ["the option's", "the manifest's"])
def test_a_name_leads_nowhere_but_into_the_repository(
    tmp_path: Path, name: str, whose: str
) -> None:
    if whose == "the option's":
        source, given = build_tensor_model(tmp_path / "source") / "graph.onnx", name
    else:
        source, given = build_synthetic(tmp_path / "source"), ""
        save_manifest(replace(load_manifest(source), name=name), source)
    before = sorted(tmp_path.rglob("*"))
    options = ImportOptions(name=given, task="tensor", replace=True)
    with pytest.raises(ManifestError, match="a model's name: one folder of the repository"):
        import_model(source, tmp_path / "deep" / "r", options, Silent())
    assert sorted(tmp_path.rglob("*")) == before
    with pytest.raises(ManifestError, match="a model's name"):
        find_model(tmp_path / "deep" / "r", name)


def test_a_model_of_that_name_is_replaced_only_on_request(tmp_path: Path) -> None:
    entry = build_synthetic(tmp_path / "source")
    graph = build_tensor_model(tmp_path / "source") / "graph.onnx"
    for source in (entry, graph):
        import_model(source, tmp_path / "r", ImportOptions(name="taken"), Silent())
        with pytest.raises(CheckpointError, match="no model 'taken'"):
            import_model(source, tmp_path / "r", ImportOptions(name="taken", version="2"), Silent())
        options = ImportOptions(name="taken", replace=True)
        assert import_model(source, tmp_path / "r", options, Silent()).name == "taken"
        shutil.rmtree(tmp_path / "r")


def test_a_changed_file_of_an_entry_is_refused(tmp_path: Path) -> None:
    source = build_synthetic(tmp_path / "source")
    (source / "tiny-a.onnx").write_bytes(b"other")
    with pytest.raises(CheckpointError, match=r"tiny-a\.onnx"):
        import_model(source, tmp_path / "r", ImportOptions(), Silent())
    assert not (tmp_path / "r").exists()


def test_a_ragged_graph_is_recognised(tmp_path: Path) -> None:
    source = build_synthetic(tmp_path / "source")
    assert read_signature(source / "tiny-a.onnx").layout == "ragged"
    padded = build_padded(tmp_path / "source")
    assert read_signature(padded / "tiny-a.onnx").layout == "padded"


def test_several_graphs_are_variants(tmp_path: Path) -> None:
    source = tmp_path / "pair"
    source.mkdir()
    made = build_synthetic(tmp_path / "source")
    for name in ("tiny-a.onnx", "tiny-b.onnx"):
        (source / name).write_bytes((made / name).read_bytes())
    tiny_tokenizer().save(str(source / "tokenizer.json"))
    options = ImportOptions(max_tokens=512, labels=("bad", "good"))
    manifest = import_model(source, tmp_path / "r", options, Silent())
    assert [variant.name for variant in manifest.variants] == ["tiny-a", "tiny-b"]
    assert manifest.labels == ("bad", "good")


def test_what_the_files_do_not_tell_is_asked_for(tmp_path: Path, padded: Path) -> None:
    repository = tmp_path / "r"
    (padded / "config.json").unlink()
    with pytest.raises(CheckpointError, match="--max-tokens"):
        import_model(padded, repository, ImportOptions(), Silent())
    (padded / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        import_model(padded, repository, ImportOptions(max_tokens=9), Silent())
    with pytest.raises(CheckpointError, match="primary output of logits"):
        import_model(padded, repository, ImportOptions(primary_output="scores"), Silent())
    two = ImportOptions(max_tokens=9, labels=("a", "b"))
    with pytest.raises(CheckpointError, match="got 2"):
        import_model(padded, repository, two, Silent())
    manifest = import_model(padded, repository, ImportOptions(task="tensor"), Silent())
    assert manifest.variants[0].layout == "tensor"


def test_a_tensor_graph_is_no_classifier(tmp_path: Path) -> None:
    source = build_tensor_model(tmp_path / "source") / "graph.onnx"
    with pytest.raises(CheckpointError, match="a float32"):
        import_model(source, tmp_path / "r", ImportOptions(task="embedding"), Silent())


def test_rubbish_is_no_graph(tmp_path: Path) -> None:
    file = tmp_path / "rubbish.onnx"
    file.write_bytes(b"\xff\xfe rubbish")
    with pytest.raises(CheckpointError, match="an ONNX graph"):
        import_model(file, tmp_path / "r", ImportOptions(), Silent())
    file.write_bytes(b"")
    with pytest.raises(CheckpointError, match="no graph"):
        import_model(file, tmp_path / "r", ImportOptions(), Silent())


def test_weights_outside_the_folder_are_refused(tmp_path: Path) -> None:
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[1])
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../secret")
    graph = helper.make_graph(
        [helper.make_node("Identity", ["w"], ["y"])],
        "g",
        [],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])],
        [tensor],
    )
    file = tmp_path / "g.onnx"
    file.write_bytes(helper.make_model(graph).SerializeToString())
    with pytest.raises(CheckpointError, match="secret"):
        read_signature(file)
