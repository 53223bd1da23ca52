"""Packing sequences into runs, and turning answers into evidence."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.models.evaluate import batches, classify, ragged_feeds, tokenize
from worker.models.synthetic import tiny_tokenizer

LENGTHS = st.lists(st.integers(1, 80), max_size=60)


class SumOfIds:
    """Answers each row with the sum of its ids, in the place of a graph."""

    def run(self, feeds: dict[str, Any]) -> dict[str, Any]:
        offsets = feeds["row_offsets"]
        rows = [feeds["input_ids"][start:end].sum() for start, end in pairwise(offsets)]
        return {"logits": np.asarray(rows, np.float32)[:, None]}


@given(lengths=LENGTHS, limit=st.integers(1, 100))
def test_ranges_cover_everything_once_within_the_limit(lengths: list[int], limit: int) -> None:
    sequences = [[0] * length for length in lengths]
    ranges = list(batches(sequences, limit))
    covered = [index for start, end in ranges for index in range(start, end)]
    assert covered == list(range(len(lengths)))
    for start, end in ranges:
        assert end - start == 1 or sum(lengths[start:end]) <= limit


@given(lengths=st.lists(st.integers(1, 80), min_size=1, max_size=60))
def test_answers_keep_their_order(lengths: list[int]) -> None:
    sequences = [[index] * length for index, length in enumerate(lengths)]
    seen: list[int] = []
    answer = classify(SumOfIds(), sequences, "logits", seen.append)
    assert answer[:, 0].tolist() == [sum(sequence) for sequence in sequences]
    assert seen[-1] == len(sequences)
    assert seen == sorted(seen)


def test_feeds_have_the_declared_types() -> None:
    feeds = ragged_feeds([[4, 5], [6]])
    assert feeds["input_ids"].tolist() == [4, 5, 6]
    assert feeds["row_offsets"].tolist() == [0, 2, 3]
    assert feeds["input_ids"].dtype == np.dtype(np.int64)
    assert feeds["row_offsets"].dtype == np.dtype(np.int32)


def test_a_text_that_is_too_long_is_refused() -> None:
    assert [len(ids) for ids in tokenize(tiny_tokenizer(), ["good", "a bad film"], 5)] == [3, 5]
    with pytest.raises(ValueError, match="at most 4 tokens in a text, got 5"):
        tokenize(tiny_tokenizer(), ["a bad film"], 4)
