"""Exported decoders become entries; what does not fit is told with what would."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.unit.worker.models.exports import tiny_export
from worker.engine import Session
from worker.models.decoder import Architecture
from worker.models.errors import CheckpointError
from worker.models.importer import ImportOptions, import_model
from worker.models.manifest import KvGeometry, Manifest, load_manifest, verify
from worker.models.perplexity import GeneratorEvaluation, windows
from worker.models.progress import Silent
from worker.models.signature import read_signature
from worker.models.synthetic_decoder import reference_decode, tiny_decoder
from worker.models.synthetic_generator import CHAT_TEMPLATE, tiny_generator_tokenizer


def imported(tmp_path: Path, source: Path, **options: object) -> Manifest:
    given = ImportOptions(**({"name": "stock"} | options))  # type: ignore[arg-type]
    return import_model(source, tmp_path / "r", given, Silent())


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_an_export_becomes_a_model_that_generates_text(
    tmp_path: Path, architecture: Architecture
) -> None:
    source = tiny_export(tmp_path / "export", architecture)
    manifest = imported(tmp_path, source)
    assert load_manifest(tmp_path / "r" / "stock") == manifest
    assert verify(tmp_path / "r" / "stock") == []
    (variant,) = manifest.variants
    assert (manifest.task, variant.layout, variant.precision) == (
        "text-generation",
        "dense",
        "fp32",
    )
    assert (variant.name, variant.max_tokens, manifest.primary_output) == ("stock", 512, "logits")
    generation = manifest.generation
    assert generation is not None
    assert generation.kv == KvGeometry(2, 2 if architecture == "llama" else 6, 16)
    assert (generation.chat_template, generation.end_tokens) == (CHAT_TEMPLATE, (0, 2))
    assert generation.vocabulary == tiny_generator_tokenizer().get_vocab_size()
    assert {"model.onnx", "model.weights", "tokenizers/tokenizer.json"} == set(manifest.files)


def test_several_graphs_of_one_signature_are_variants(tmp_path: Path) -> None:
    source = tiny_export(tmp_path / "export")
    (source / "again.onnx").write_bytes((source / "model.onnx").read_bytes())
    manifest = imported(tmp_path, source)
    assert [variant.name for variant in manifest.variants] == ["again", "model"]


def test_what_the_graph_does_not_tell_may_be_given(tmp_path: Path) -> None:
    source = tiny_export(tmp_path / "export")
    (source / "config.json").unlink()
    with pytest.raises(CheckpointError, match="give --max-tokens"):
        imported(tmp_path, source)
    manifest = imported(tmp_path, source, max_tokens=40)
    assert manifest.generation is not None
    assert (manifest.generation.context, manifest.generation.end_tokens) == (40, ())
    (source / "tokenizer.json").rename(tmp_path / "words.json")
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        imported(tmp_path, source, max_tokens=40, replace=True)
    manifest = imported(
        tmp_path, source, max_tokens=40, replace=True, tokenizer=tmp_path / "words.json"
    )
    assert manifest.default_tokenizer == "tokenizer"


def test_a_tokenizer_of_another_model_is_refused(tmp_path: Path) -> None:
    source = tiny_export(tmp_path / "export")
    words = json.loads((source / "tokenizer.json").read_text())
    words["added_tokens"].append({**words["added_tokens"][0], "id": 9999, "content": "<more>"})
    (source / "tokenizer.json").write_text(json.dumps(words))
    with pytest.raises(CheckpointError, match="use the tokenizer of this checkpoint"):
        imported(tmp_path, source)


@pytest.mark.parametrize(
    ("file", "text", "told"),
    [
        ("tokenizer.json", '{"model": 1}', "a tokenizer that the tokenizers library reads"),
        ("config.json", "[" * 100_000, "JSON in"),
        ("config.json", '{"max_position_embeddings": 1000000000000}', "of 2 to 2147483647 tokens"),
        ("generation_config.json", '{"eos_token_id": "x"}', "ids of tokens"),
        ("generation_config.json", '{"eos_token_id": [true]}', "ids of tokens"),
    ],
)
def test_a_file_that_says_nonsense_is_named(
    tmp_path: Path, file: str, text: str, told: str
) -> None:
    source = tiny_export(tmp_path / "export")
    (source / file).write_text(text)
    with pytest.raises(CheckpointError, match=told):
        imported(tmp_path, source)


def test_a_decoder_is_no_classifier_but_may_be_tensors(tmp_path: Path) -> None:
    source = tiny_export(tmp_path / "export")
    with pytest.raises(CheckpointError, match="leave --task out"):
        imported(tmp_path, source, task="embedding")
    assert imported(tmp_path, source, task="tensor").variants[0].layout == "tensor"


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("use_cache_branch", r"merged one.*use_cache_branch.*with_past.*--task tensor"),
        ("encoder_hidden", r"also encoder_hidden.*--task tensor"),
    ],
)
def test_an_input_that_nobody_feeds_is_named(tmp_path: Path, name: str, told: str) -> None:
    def merge(model: onnx.ModelProto) -> None:
        model.graph.input.append(
            onnx.helper.make_tensor_value_info(name, onnx.TensorProto.BOOL, [1])
        )

    source = tiny_export(tmp_path / "export", change=merge)
    with pytest.raises(CheckpointError, match=told):
        imported(tmp_path, source)
    assert not (tmp_path / "r" / "stock" / "manifest.json").exists()


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("attention_mask", r"attention_mask as int64 \[-1, -1\]"),
        ("past_key_values.1.value", r"\.1\.value as float32 \[-1, 2, -1, 16\]"),
    ],
)
def test_a_graph_of_one_sequence_only_is_refused(tmp_path: Path, name: str, told: str) -> None:
    def fix(model: onnx.ModelProto) -> None:
        value = next(v for v in model.graph.input if v.name == name)
        value.type.tensor_type.shape.dim[0].dim_value = 1

    source = tiny_export(tmp_path / "export", change=fix)
    assert read_signature(source / "model.onnx").layout == "dense"
    with pytest.raises(CheckpointError, match=told):
        imported(tmp_path, source)


def test_a_missing_output_is_named(tmp_path: Path) -> None:
    def cut(model: onnx.ModelProto) -> None:
        last = model.graph.output[-1]
        model.graph.output.remove(last)

    source = tiny_export(tmp_path / "export", change=cut)
    with pytest.raises(CheckpointError, match=r"no present\.1\.value"):
        imported(tmp_path, source)


def test_a_stock_graph_is_evaluated_like_a_paged_one(tmp_path: Path) -> None:
    source = tiny_export(tmp_path / "export", context=128)
    imported(tmp_path, source)
    texts = tuple(f"the inner theatre {number}, in the rain; " * 40 for number in range(3))
    evaluation = GeneratorEvaluation(
        tmp_path / "r" / "stock",
        "here",
        lambda graph: Session(graph, share_weights=False),
        Silent(),
    )
    manifest = evaluation.run((), texts, 2)
    found = {item.metric: item for item in manifest.variants[0].quality}
    assert found["top1-agreement"].value == 1.0
    assert found["perplexity"].n == 2 * 96
    decoder = tiny_decoder(
        vocabulary=tiny_generator_tokenizer().get_vocab_size(), context=128, tied=False
    )
    surprise = []
    for window in windows([tiny_generator_tokenizer().encode(text).ids for text in texts], 128, 2):
        logits = reference_decode(decoder, window)[31:-1].astype(np.float64)
        chances = logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)
        surprise += [-chances[row, token] for row, token in enumerate(window[32:])]
    assert found["perplexity"].value == pytest.approx(np.exp(np.mean(surprise)), rel=1e-3)
