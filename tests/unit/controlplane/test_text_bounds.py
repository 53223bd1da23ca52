"""No text of so many tokens is longer than the bound says."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from controlplane.text_bounds import longest_token


@cache
def byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|end_of_a_text|>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(
        ["the sea is wide and the ship is small   " * 5, "čау 海"], trainer
    )
    return tokenizer


def bound(tokenizer: Tokenizer) -> int:
    return longest_token(tokenizer, tokenizer.to_str().encode())


def test_a_byte_level_tokenizer_has_the_bound_of_its_longest_token() -> None:
    assert bound(byte_level()) == len("<|end_of_a_text|>")


@given(
    st.lists(
        st.sampled_from(["the sea", " is", "   ", "海", "<|end_of_a_text|>", "7", "\n"]) | st.text()
    )
)
def test_no_text_outruns_the_bound(parts: list[str]) -> None:
    text = "".join(parts)
    tokens = len(byte_level().encode(text).ids)
    assert len(text) <= tokens * bound(byte_level())


def test_tokenizers_that_drop_characters_get_plenty() -> None:
    words = Tokenizer(models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    assert bound(words) == 128
    folding = Tokenizer.from_str(byte_level().to_str())
    folding.normalizer = normalizers.Strip()
    assert bound(folding) == 128
    cutting = Tokenizer.from_str(byte_level().to_str())
    cutting.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex("x+"), "removed"), pre_tokenizers.ByteLevel(False)]
    )
    assert bound(cutting) == 128


@pytest.mark.parametrize("length", [5, 300])
def test_a_longer_token_is_more_than_plenty(length: int) -> None:
    words = Tokenizer(models.WordLevel({"a" * length: 0}, unk_token="a" * length))
    assert bound(words) == max(128, length)
