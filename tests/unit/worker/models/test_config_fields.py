"""Sizes that a checkpoint's config has mistyped or left out are told, with file and key."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.golden.checkpoints import config_document, tiny_checkpoint
from tests.golden.decoder_checkpoints import config_document as decoder_document
from tests.golden.decoder_checkpoints import tiny_checkpoint as decoder_weights
from tests.unit.worker.models.gguf_files import (
    metadata_of,
    tensors_of,
    tiny_gguf_decoder,
    write_gguf,
)
from tests.unit.worker.models.test_local import write_checkpoint
from worker.models.architecture import Head
from worker.models.config_fields import ConfigFields
from worker.models.decoder_sources import checkpoint_config, gguf_config, read_decoder
from worker.models.errors import CheckpointError
from worker.models.families import encoder_config, read_encoder
from worker.models.gguf import GgufFile
from worker.models.local import CheckpointOptions, build_checkpoint
from worker.models.progress import Silent

SIZES = {
    "bert": (
        "num_hidden_layers",
        "hidden_size",
        "num_attention_heads",
        "intermediate_size",
        "vocab_size",
        "max_position_embeddings",
    ),
    "distilbert": (
        "n_layers",
        "dim",
        "n_heads",
        "hidden_dim",
        "vocab_size",
        "max_position_embeddings",
    ),
    "llama": (
        "num_hidden_layers",
        "hidden_size",
        "num_attention_heads",
        "intermediate_size",
        "vocab_size",
        "max_position_embeddings",
    ),
    "gpt2": ("n_layer", "n_embd", "n_head", "vocab_size", "n_positions"),
}
# What others than their absence stands for something.
OPTIONAL = {"llama": ("num_key_value_heads", "head_dim"), "gpt2": ("n_inner",)}
WRONG = ["32", 0, -1, 2.0, True, [32], {}, 2**31, 10**400, float("nan")]
GGUF_SIZES = (
    "llama.embedding_length",
    "llama.attention.head_count",
    "llama.block_count",
    "llama.feed_forward_length",
    "llama.context_length",
)


def read(family: str, change: dict[str, Any], *, without: str = "") -> None:
    decodes = family in ("llama", "gpt2")
    document = (decoder_document if decodes else config_document)(family) | change
    document.pop(without, None)
    if decodes:
        read_decoder(checkpoint_config(document), decoder_weights(family))
    else:
        read_encoder(encoder_config(document), tiny_checkpoint(family), Head("mean"))


def pairs(table: dict[str, tuple[str, ...]]) -> list[tuple[str, str]]:
    return [(family, key) for family, keys in table.items() for key in keys]


@pytest.mark.parametrize("value", WRONG, ids=lambda value: repr(value)[:12])
@pytest.mark.parametrize(("family", "key"), [*pairs(SIZES), *pairs(OPTIONAL)])
def test_a_size_that_is_none_is_told_with_file_and_key(family: str, key: str, value: Any) -> None:
    told = f"'{key}' in config.json to be a whole number of 1 to 2147483647; got "
    with pytest.raises(CheckpointError, match=re.escape(told + repr(value)[:80])):
        read(family, {key: value})


@pytest.mark.parametrize(("family", "key"), pairs(SIZES))
def test_a_size_that_is_absent_is_told_with_file_and_key(family: str, key: str) -> None:
    for change, without in (({}, key), ({key: None}, "")):
        with pytest.raises(
            CheckpointError, match=rf"'{key}' in config\.json to be .*; got nothing"
        ):
            read(family, change, without=without)


@pytest.mark.parametrize(("family", "key"), [*pairs(SIZES), *pairs(OPTIONAL)])
def test_a_size_that_the_weights_do_not_have_is_refused(family: str, key: str) -> None:
    """The largest there is, on which no array may be made before the weights were looked at."""
    if (family, key) == ("llama", "max_position_embeddings"):
        read(family, {key: 2**31 - 1})  # Rotary positions have no table.
        return
    with pytest.raises(CheckpointError):
        read(family, {key: 2**31 - 1})


@pytest.mark.parametrize("positions", [2, 100, 203, 2**31 - 1])
def test_positions_of_mpnet_are_those_of_its_table(positions: int) -> None:
    with pytest.raises(CheckpointError, match=r"'max_position_embeddings' in config\.json"):
        read("mpnet", {"max_position_embeddings": positions})


def test_heads_that_the_biases_of_mpnet_do_not_have_are_refused() -> None:
    with pytest.raises(CheckpointError, match=r"biases of shape \(buckets, 2\); got \(32, 4\)"):
        read("mpnet", {"num_attention_heads": 2})


def test_heads_that_do_not_divide_the_hidden_size_are_refused() -> None:
    with pytest.raises(CheckpointError, match="in multiples of its heads; got 32 and 5"):
        read("bert", {"num_attention_heads": 5})


@pytest.mark.parametrize("value", ["1e-5", 0, -1e-5, float("nan"), float("inf"), 10**400, True])
@pytest.mark.parametrize(
    ("family", "key"),
    [
        ("bert", "layer_norm_eps"),
        ("llama", "rms_norm_eps"),
        ("llama", "rope_theta"),
        ("gpt2", "layer_norm_epsilon"),
    ],
)
def test_a_number_that_is_none_is_told_with_file_and_key(family: str, key: str, value: Any) -> None:
    with pytest.raises(CheckpointError, match=f"'{key}' in config.json to be a number above 0"):
        read(family, {key: value})


@pytest.mark.parametrize("value", ["linear", [1], 2])
def test_rotary_settings_that_are_no_object_are_told(value: Any) -> None:
    for key in ("rope_scaling", "rope_parameters"):
        with pytest.raises(CheckpointError, match=f"'{key}' in config.json to be an object"):
            read("llama", {key: value})


@pytest.mark.parametrize("value", ["two", 0, 1.5, [2], 2**31])
@pytest.mark.parametrize(
    "key", [*GGUF_SIZES, "llama.attention.head_count_kv", "llama.rope.dimension_count"]
)
def test_a_size_in_a_gguf_file_is_told_with_file_and_key(
    tmp_path: Path, key: str, value: Any
) -> None:
    decoder = tiny_gguf_decoder()
    path = tmp_path / "tiny.gguf"
    write_gguf(path, metadata_of(decoder) | {key: value}, tensors_of(decoder))
    told = f"'{key}' in tiny.gguf to be a whole number of 1 to 2147483647; got "
    with GgufFile(path) as file, pytest.raises(CheckpointError, match=re.escape(told)):
        gguf_config(file)


def test_what_is_absent_in_a_gguf_file_is_told_or_has_its_default(tmp_path: Path) -> None:
    decoder = tiny_gguf_decoder()
    path = tmp_path / "tiny.gguf"
    for key in GGUF_SIZES:
        metadata = metadata_of(decoder)
        del metadata[key]
        write_gguf(path, metadata, tensors_of(decoder))
        with GgufFile(path) as file, pytest.raises(CheckpointError, match=f"'{key}' .*nothing"):
            gguf_config(file)
    metadata = metadata_of(decoder) | {"llama.rope.freq_base": "10000"}
    write_gguf(path, metadata, tensors_of(decoder))
    with GgufFile(path) as file, pytest.raises(CheckpointError, match=r"freq_base.*above 0"):
        gguf_config(file)
    del metadata["llama.rope.freq_base"], metadata["llama.rope.dimension_count"]
    write_gguf(path, metadata, tensors_of(decoder))
    with GgufFile(path) as file:
        config = gguf_config(file)
    assert (config.rope_theta, config.head_dim) == (10000.0, decoder.config.head_dim)


def test_labels_of_other_classes_are_told(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "source", "bert")
    named = config_document("bert") | {"id2label": {"0": "bad", "1": "fair", "good": "2"}}
    (source / "config.json").write_text(json.dumps(named))
    with pytest.raises(CheckpointError, match="'id2label' in config"):
        build_checkpoint(source, tmp_path, CheckpointOptions("a"), Silent())


def test_a_long_value_is_cut() -> None:
    fields = ConfigFields({"n": "x" * 500}, file="config.json", remedy="correct it")
    with pytest.raises(CheckpointError) as told:
        fields.size("n")
    assert len(str(told.value)) < 200
