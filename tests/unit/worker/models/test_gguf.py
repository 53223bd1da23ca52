"""Reading GGUF files: blocks, tensors, metadata, damage."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from tests.unit.worker.models.gguf_files import (
    TEMPLATE,
    TOKENS,
    metadata_of,
    tensors_of,
    tiny_gguf_decoder,
    write_gguf,
)
from worker.models.blocks import Matrix, eight_bits, four_bits, from_q4_0, stacked
from worker.models.decoder_sources import gguf_config, read_gguf
from worker.models.errors import CheckpointError
from worker.models.gguf import GgufFile
from worker.models.gguf_tokenizer import text_settings


@pytest.fixture
def path(tmp_path: Path) -> Path:
    decoder = tiny_gguf_decoder()
    write_gguf(tmp_path / "tiny.gguf", metadata_of(decoder), tensors_of(decoder))
    return tmp_path / "tiny.gguf"


def test_a_decoder_comes_back_as_it_was(path: Path) -> None:
    expected = tiny_gguf_decoder()
    with GgufFile(path) as file:
        decoder = read_gguf(file)
    assert decoder.config == expected.config
    assert decoder.words.form == "q8"
    np.testing.assert_array_equal(decoder.words.floats(), expected.words.floats())
    for layer, wanted in zip(decoder.layers, expected.layers, strict=True):
        for name in ("qkv", "attended", "up", "down"):
            got, original = getattr(layer, name).weight, getattr(wanted, name).weight
            assert got.form == "q4"
            np.testing.assert_array_equal(got.floats(), original.floats(), err_msg=name)
        np.testing.assert_array_equal(layer.mlp_norm.scale, wanted.mlp_norm.scale)


def test_text_settings_are_those_of_the_file(path: Path) -> None:
    with GgufFile(path) as file:
        text = text_settings(file)
    assert text.chat_template == TEMPLATE
    assert text.end_tokens == (0, 1)
    assert text.begin_token is None
    tokenizer = Tokenizer.from_buffer(text.tokenizer)
    encoded = tokenizer.encode("a 12<|im_end|>")
    assert encoded.tokens == ["a", "Ġ", "1", "2", "<|im_end|>"]
    assert encoded.ids[-1] == TOKENS.index("<|im_end|>")
    assert tokenizer.decode(encoded.ids, skip_special_tokens=True) == "a 12"


@pytest.mark.parametrize("share", [0.0, 0.0001, 0.003, 0.01, 0.02, 0.03, 0.05, 0.5, 0.999])
def test_a_file_that_ends_early_is_refused(path: Path, share: float) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(CheckpointError), GgufFile(path) as file:
        read_gguf(file)


def test_other_files_and_architectures_are_refused(path: Path, tmp_path: Path) -> None:
    (tmp_path / "zip.gguf").write_bytes(b"PK\3\4" + bytes(64))
    with pytest.raises(CheckpointError, match="GGUF version 2 or 3"):
        GgufFile(tmp_path / "zip.gguf")
    with pytest.raises(CheckpointError, match="a GGUF file none"):
        GgufFile(tmp_path / "none.gguf")
    decoder = tiny_gguf_decoder()
    changes = {
        "general.architecture": ("mamba", "architecture 'llama'"),
        "llama.rope.scaling.type": ("yarn", "without scaling"),
        "llama.attention.head_count_kv": (4, "multiples of kv heads"),
    }
    for key, (value, reason) in changes.items():
        write_gguf(path, metadata_of(decoder) | {key: value}, tensors_of(decoder))
        with GgufFile(path) as file, pytest.raises(CheckpointError, match=reason):
            gguf_config(file)
    write_gguf(path, metadata_of(decoder) | {"tokenizer.ggml.pre": "qwen2"}, tensors_of(decoder))
    with GgufFile(path) as file, pytest.raises(CheckpointError, match="splitter"):
        text_settings(file)
    write_gguf(path, metadata_of(decoder) | {"tokenizer.ggml.merges": ["q z"]}, tensors_of(decoder))
    with GgufFile(path) as file, pytest.raises(CheckpointError, match="merges of known tokens"):
        text_settings(file)


def test_missing_and_misshapen_tensors_are_named(path: Path) -> None:
    decoder = tiny_gguf_decoder()
    tensors = tensors_of(decoder)
    del tensors["blk.1.ffn_up.weight"]
    write_gguf(path, metadata_of(decoder), tensors)
    with GgufFile(path) as file, pytest.raises(CheckpointError, match=r"blk\.1\.ffn_up"):
        read_gguf(file)
    tensors = tensors_of(decoder) | {"blk.0.attn_output.weight": decoder.layers[0].down.weight}
    write_gguf(path, metadata_of(decoder), tensors)
    with GgufFile(path) as file, pytest.raises(CheckpointError, match="layer 0 attended of shape"):
        read_gguf(file)


def test_four_and_eight_bit_blocks_round_to_nearest() -> None:
    weights = np.random.default_rng(0).normal(0, 1, (5, 64)).astype(np.float32)
    for made, steps in ((four_bits(weights), 15), (eight_bits(weights), 254)):
        blocks = weights.reshape(5, 2, 32)
        span = blocks.max(axis=-1) - blocks.min(axis=-1)
        if made.form == "q8":
            span = 2 * np.abs(blocks).max(axis=-1)
        worst = np.abs(made.floats().reshape(5, 2, 32) - blocks).max(axis=-1)
        # Half a step, and a little for scales in half precision.
        assert (worst <= span / steps * 0.5 + span * 2e-3).all()


def test_q4_0_is_centred_at_eight() -> None:
    group = np.zeros((1, 1, 18), np.uint8)
    group[0, 0, :2] = np.array([0.5], "<f2").view(np.uint8)
    group[0, 0, 2] = 0x90
    row = from_q4_0(group).floats()[0]
    assert row[0] == -4.0
    assert row[16] == 0.5
    assert row[1] == row[17] == -4.0


def test_stacking_keeps_a_common_form_only() -> None:
    weights = np.random.default_rng(0).normal(0, 1, (4, 32)).astype(np.float32)
    four, eight, dense = four_bits(weights), eight_bits(weights), Matrix.dense(weights)
    both = stacked([four, four])
    assert (both.form, both.shape) == ("q4", (8, 32))
    np.testing.assert_array_equal(both.floats()[4:], four.floats())
    mixed = stacked([four, eight, dense])
    assert mixed.form == "dense"
    np.testing.assert_array_equal(mixed.floats()[4:8], eight.floats())
