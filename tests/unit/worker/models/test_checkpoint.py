"""Reading safetensors lazily, merging adapters, and undressing tokenizers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from tokenizers import Tokenizer

from worker.models.checkpoint import (
    MergedWeights,
    SafetensorsFiles,
    plain_tokenizer,
    read_json,
    weight_files,
)
from worker.models.errors import CheckpointError
from worker.models.synthetic import tiny_tokenizer


def test_several_files_read_as_one(tmp_path: Path) -> None:
    save_file({"a": np.ones((2, 3), np.float32)}, tmp_path / "one.safetensors")
    save_file({"b": np.zeros(4, np.float16)}, tmp_path / "two.safetensors")
    with SafetensorsFiles(weight_files(tmp_path)) as weights:
        assert sorted(weights) == ["a", "b"]
        assert len(weights) == 2
        assert weights["a"].shape == (2, 3)
        assert "c" not in weights


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bad.safetensors").write_bytes(b"not at all")
    with pytest.raises(CheckpointError, match=r"bad\.safetensors"):
        SafetensorsFiles([tmp_path / "bad.safetensors"])


def test_other_element_types_are_named(tmp_path: Path) -> None:
    save_file({"a": np.ones(2, np.uint8)}, tmp_path / "one.safetensors")
    with (
        SafetensorsFiles([tmp_path / "one.safetensors"]) as weights,
        pytest.raises(CheckpointError, match="'a'; got U8"),
    ):
        weights["a"]


def test_a_folder_without_weights_says_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin"):
        weight_files(tmp_path)


def test_adapters_are_added_in_float32() -> None:
    random = np.random.default_rng(3)
    base = {"m.weight": random.normal(size=(5, 4)).astype(np.float32), "n": np.ones(2, np.float32)}
    adapter: dict[str, Any] = {
        "m.lora_A": random.normal(size=(2, 4)).astype(np.float16),
        "m.lora_B": random.normal(size=(5, 2)).astype(np.float16),
        "head.weight": np.ones((2, 5), np.float32),
    }
    merged = MergedWeights(base, adapter)
    low, high = (adapter[f"m.lora_{part}"].astype(np.float32) for part in "AB")
    np.testing.assert_allclose(merged["m.weight"], base["m.weight"] + high @ low, rtol=1e-6)
    assert merged["m.weight"].dtype == np.float32
    assert merged["n"] is base["n"]
    assert sorted(merged) == ["head.weight", "m.weight", "n"]
    assert "m.lora_A" not in merged


def test_an_adapter_of_another_base_is_refused() -> None:
    with pytest.raises(CheckpointError, match=r"x\.weight"):
        MergedWeights({}, {"x.lora_A": np.ones((1, 1)), "x.lora_B": np.ones((1, 1))})


def test_truncation_and_padding_leave_the_tokenizer(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=12)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    plain = Tokenizer.from_str(plain_tokenizer(tmp_path / "tokenizer.json").decode())
    assert len(plain.encode("a good film and a bad one").ids) == 9


@pytest.mark.parametrize("content", ["{", "[]", '"text"'])
def test_json_that_is_no_object_is_refused(tmp_path: Path, content: str) -> None:
    file = tmp_path / "config.json"
    file.write_text(content)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        read_json(file)


def test_missing_json_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"a file config\.json"):
        read_json(tmp_path / "config.json")


def test_json_without_a_model_is_no_tokenizer(tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps({"version": "1.0"}))
    with pytest.raises(CheckpointError, match="tokenizer document"):
        plain_tokenizer(file)
