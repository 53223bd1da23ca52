"""Measures a classifier's accuracy through the engine that serves it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from worker.models.progress import Report

# Enough tokens in a run to keep the matrix products efficient, few enough to stay in cache.
BATCH_TOKENS = 512


Feeds = dict[str, NDArray[Any]]


class Runs(Protocol):
    """The part of an engine session that evaluation needs."""

    def run(self, feeds: Feeds) -> Feeds:
        """Run the graph once on named tensors and return its outputs by name."""
        ...


def ragged_feeds(sequences: Sequence[Sequence[int]]) -> Feeds:
    """Lay sequences end to end: ``input_ids`` int64 [T] and ``row_offsets`` int32 [S+1]."""
    offsets = np.zeros(len(sequences) + 1, np.int32)
    np.cumsum([len(sequence) for sequence in sequences], out=offsets[1:])
    ids = np.concatenate([np.asarray(sequence, np.int64) for sequence in sequences])
    return {"input_ids": ids, "row_offsets": offsets}


def batches(
    sequences: Sequence[Sequence[int]], limit: int = BATCH_TOKENS
) -> Iterator[tuple[int, int]]:
    """Yield half-open ranges of consecutive sequences with at most ``limit`` tokens together.

    A sequence longer than the limit makes a range of its own.
    """
    start, tokens = 0, 0
    for index, sequence in enumerate(sequences):
        if index > start and tokens + len(sequence) > limit:
            yield start, index
            start, tokens = index, 0
        tokens += len(sequence)
    if start < len(sequences):
        yield start, len(sequences)


def classify(
    session: Runs, sequences: Sequence[Sequence[int]], output: str, report: Report
) -> NDArray[np.float32]:
    """Return ``output`` [N, classes] of a ragged graph for N sequences of token ids."""
    parts = []
    for start, end in batches(sequences):
        parts.append(session.run(ragged_feeds(sequences[start:end]))[output])
        report(end)
    return np.concatenate(parts)


def tokenize(tokenizer: Tokenizer, texts: Sequence[str], max_tokens: int) -> list[list[int]]:
    """Return the token ids of each text.

    Raises ValueError when a text has more than ``max_tokens``: nothing is cut silently.
    """
    found = [list(encoding.ids) for encoding in tokenizer.encode_batch(list(texts))]
    longest = max(map(len, found), default=0)
    if longest > max_tokens:
        raise ValueError(f"expected at most {max_tokens} tokens in a text, got {longest}")
    return found
