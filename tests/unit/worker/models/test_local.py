"""Entries built from checkpoint folders of the three families."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from tests.golden.checkpoints import VOCABULARY, config_document, sequences, tiny_checkpoint
from tests.unit.worker.models.encoder_builds import FAMILIES, GOLDEN, padded_inputs
from worker.engine import Session
from worker.models.architecture import Family
from worker.models.errors import CheckpointError
from worker.models.evaluate import ragged_feeds
from worker.models.local import CheckpointOptions, build_checkpoint
from worker.models.manifest import Layout, load_manifest, verify
from worker.models.progress import Silent
from worker.models.synthetic import tiny_tokenizer, vocabulary


def write_checkpoint(folder: Path, family: Family, *, head: str = "stock") -> Path:
    """Write a checkpoint folder whose head is stock, mean or absent."""
    folder.mkdir(parents=True)
    weights = tiny_checkpoint(family)
    if head != "mean":
        del weights["head.weight"], weights["head.bias"]
    if head == "none":
        weights = {name: array for name, array in weights.items() if "classifier" not in name}
    save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config_document(family)))
    words = {word: index for word, index in vocabulary().items() if index < VOCABULARY}
    Tokenizer(WordLevel(words, unk_token="[UNK]")).save(str(folder / "tokenizer.json"))
    return folder


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("head", ["stock", "mean", "none"])
@pytest.mark.parametrize("layout", ["ragged", "padded"])
def test_the_entry_answers_like_the_reference(
    tmp_path: Path, family: Family, head: str, layout: Layout
) -> None:
    source = write_checkpoint(tmp_path / "source", family, head=head)
    options = CheckpointOptions("mine", layout=layout)
    manifest = build_checkpoint(source, tmp_path, options, Silent())
    assert load_manifest(tmp_path / "mine") == manifest
    assert verify(tmp_path / "mine") == []
    embedder = head == "none"
    assert manifest.task == ("embedding" if embedder else "text-classification")
    assert manifest.labels == (() if embedder else ("class-0", "class-1", "class-2"))
    rows = sequences(family)
    feeds = ragged_feeds(rows) if layout == "ragged" else padded_inputs(rows)
    answer = Session(tmp_path / "mine" / manifest.variants[0].graph).run(feeds)
    expected = GOLDEN[family]["embedding" if embedder else head]
    np.testing.assert_allclose(answer[manifest.primary_output], expected, atol=1e-5, rtol=0)


def test_labels_come_from_the_config_or_the_options(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "source", "bert")
    named = config_document("bert") | {"id2label": {"0": "bad", "1": "fair", "2": "good"}}
    (source / "config.json").write_text(json.dumps(named))
    built = build_checkpoint(source, tmp_path, CheckpointOptions("a"), Silent())
    assert built.labels == ("bad", "fair", "good")
    options = CheckpointOptions("b", labels=("x", "y", "z"))
    assert build_checkpoint(source, tmp_path, options, Silent()).labels == ("x", "y", "z")
    with pytest.raises(CheckpointError, match="expected 3 labels, one a class; got 2"):
        build_checkpoint(source, tmp_path, CheckpointOptions("c", labels=("x", "y")), Silent())


def test_labelled_texts_become_evidence(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "source", "mpnet")
    data = tmp_path / "films.tsv"
    data.write_text("class-0\ta good film\nclass-1\ta bad film\nclass-2\tdull\n\n")
    layouts: tuple[Layout, ...] = ("ragged", "padded")
    for layout in layouts:
        options = CheckpointOptions(layout, layout=layout, labelled=data)
        (variant,) = build_checkpoint(source, tmp_path, options, Silent()).variants
        assert (variant.quality[0].population, variant.quality[0].n) == ("films", 3)
    ragged, padded = (load_manifest(tmp_path / name).variants[0] for name in ("ragged", "padded"))
    assert ragged.quality == padded.quality


@pytest.mark.parametrize("line", ["other\ttext", "class-0 text"])
def test_a_bad_line_of_labelled_texts_is_named(tmp_path: Path, line: str) -> None:
    source = write_checkpoint(tmp_path / "source", "bert")
    data = tmp_path / "films.tsv"
    data.write_text(f"class-0\tfine\n{line}\n")
    with pytest.raises(CheckpointError, match=r"line 2 of films\.tsv"):
        build_checkpoint(source, tmp_path, CheckpointOptions("mine", labelled=data), Silent())


def test_pooling_of_sentence_folders_is_honoured(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "source", "bert", head="none")
    (source / "1_Pooling").mkdir()
    pooling = source / "1_Pooling" / "config.json"
    pooling.write_text(json.dumps({"pooling_mode_max_tokens": True}))
    with pytest.raises(CheckpointError, match="pooling_mode_max_tokens"):
        build_checkpoint(source, tmp_path, CheckpointOptions("mine"), Silent())
    pooling.write_text(json.dumps({"pooling_mode_cls_token": True, "word_embedding_dimension": 1}))
    build_checkpoint(source, tmp_path, CheckpointOptions("mine"), Silent())
    rows = sequences("bert")
    answer = Session(tmp_path / "mine" / "mine.onnx").run(ragged_feeds(rows))["embedding"]
    np.testing.assert_allclose(np.linalg.norm(answer, axis=1), 1, atol=1e-6)
    assert np.abs(answer - np.asarray(GOLDEN["bert"]["embedding"])).max() > 1e-3


def test_sizes_that_do_not_fill_blocks_are_refused_for_int8(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "source", "bert")
    with pytest.raises(CheckpointError, match="got 32 and 48"):
        build_checkpoint(source, tmp_path, CheckpointOptions("m", precisions=("int8",)), Silent())


def test_a_tokenizer_of_more_words_than_the_model_is_refused(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "source", "bert")
    tiny_tokenizer().save(str(source / "tokenizer.json"))
    with pytest.raises(CheckpointError, match="at most 60 tokens"):
        build_checkpoint(source, tmp_path, CheckpointOptions("mine"), Silent())


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json", "model.safetensors"])
def test_an_incomplete_folder_is_refused(tmp_path: Path, missing: str) -> None:
    source = write_checkpoint(tmp_path / "source", "bert")
    (source / missing).unlink()
    with pytest.raises(CheckpointError):
        build_checkpoint(source, tmp_path, CheckpointOptions("mine"), Silent())
    assert not (tmp_path / "mine" / "manifest.json").exists()
