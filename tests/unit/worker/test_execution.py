"""Splitting and joining of items, over a session that computes in numpy."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from worker.errors import EngineFault, InvalidInput, WorkerError
from worker.execution import near_equal_groups, run_items
from worker.models.layouts import classifier_outputs, text_inputs
from worker.models.manifest import TensorSpec, Variant
from worker.records import Item

VOCABULARY = 1000


class NeverToken:
    def terminate(self) -> None:
        raise AssertionError("nothing terminates here")


class Ragged:
    """Row sums of token ids and of their squares; fails when a row holds the token 666."""

    def __init__(self) -> None:
        self.runs: list[list[int]] = []

    def run(
        self, feeds: Mapping[str, NDArray[Any]], outputs: object = None, *, token: object = None
    ) -> dict[str, NDArray[Any]]:
        ids, offsets = feeds["input_ids"], feeds["row_offsets"]
        assert ids.dtype == np.int64 and offsets.dtype == np.int32
        if (ids == 666).any():
            raise EngineFault("cannot take 666")
        rows = [ids[a:b] for a, b in itertools.pairwise(offsets)]
        self.runs.append([len(row) for row in rows])
        return {"logits": np.array([[r.sum(), (r * r).sum()] for r in rows], np.float32)}


class Padded(Ragged):
    """The same sums of a padded graph, and every token id doubled."""

    def run(
        self, feeds: Mapping[str, NDArray[Any]], outputs: object = None, *, token: object = None
    ) -> dict[str, NDArray[Any]]:
        ids, mask = feeds["input_ids"], feeds["attention_mask"]
        self.runs.append([ids.shape[1]] * len(ids))
        logits = np.stack([(ids * mask).sum(1), (ids * ids * mask).sum(1)], axis=1)
        return {"logits": logits.astype(np.float32), "hidden": ids * 2}


class Adder:
    def run(
        self, feeds: Mapping[str, NDArray[Any]], outputs: object = None, *, token: object = None
    ) -> dict[str, NDArray[Any]]:
        return {"sum": feeds["a"] + feeds["b"]}


def token_variant(layout: str) -> Variant:
    assert layout in ("ragged", "padded")
    chosen = "ragged" if layout == "ragged" else "padded"
    outputs = classifier_outputs(2)
    if layout == "padded":
        outputs = (*outputs, TensorSpec("hidden", "int64", (-1, -1)))
    return Variant(layout, chosen, "fp32", "g.onnx", "words", 64, text_inputs(chosen), outputs)  # type: ignore[arg-type]


ADDER = Variant(
    *("adder", "tensor", "fp32", "g.onnx", "", 0),
    (TensorSpec("a", "float32", (-1,)), TensorSpec("b", "float32", (2,))),
    (TensorSpec("sum", "float32", (-1,)),),
)


def tokens(*rows: list[int], item_id: int = 0) -> Item:
    ids = np.array([i for row in rows for i in row], np.int32)
    return Item(item_id, 0, token_ids=ids, lengths=tuple(len(row) for row in rows))


def run(session: Any, variant: Variant, *items: Item) -> list[Any]:
    return list(run_items(session, variant, VOCABULARY, items, NeverToken()).outcomes)


ROWS = st.lists(st.integers(0, 600), min_size=1, max_size=64)
ITEMS = st.lists(st.lists(ROWS, min_size=1, max_size=4), min_size=1, max_size=6)


@given(items=ITEMS)
@pytest.mark.parametrize("layout", ["ragged", "padded"])
def test_rows_come_back_to_their_item_and_place(layout: str, items: list[list[list[int]]]) -> None:
    session = Ragged() if layout == "ragged" else Padded()
    outcomes = run(session, token_variant(layout), *(tokens(*rows) for rows in items))
    for rows, outcome in zip(items, outcomes, strict=True):
        expected = np.array([[sum(r), sum(i * i for i in r)] for r in rows], np.float32)
        assert np.array_equal(outcome["logits"], expected)
        if layout == "padded":
            longest = max(map(len, rows))
            padded = np.array([[2 * i for i in r] + [0] * (longest - len(r)) for r in rows])
            assert np.array_equal(outcome["hidden"], padded)


def test_the_peak_is_that_of_its_own_runs() -> None:
    peaks = iter([99, 7])
    items = [tokens([1]), tokens([2, 3])]
    variant = token_variant("ragged")
    done = run_items(Ragged(), variant, VOCABULARY, items, NeverToken(), lambda: next(peaks))
    assert done.peak_bytes == 7
    assert run_items(Ragged(), variant, VOCABULARY, items, NeverToken()).peak_bytes == 0


def test_ragged_items_share_one_run() -> None:
    session = Ragged()
    run(session, token_variant("ragged"), tokens([1], [2, 3]), tokens([4] * 60))
    assert session.runs == [[1, 2, 60]]


@given(lengths=st.lists(st.integers(1, 512), min_size=1, max_size=40))
def test_groups_hold_each_sequence_once_with_little_padding(lengths: list[int]) -> None:
    groups = near_equal_groups(lengths)
    assert sorted(i for group in groups for i in group) == list(range(len(lengths)))
    for group in groups:
        shortest, longest = min(lengths[i] for i in group), max(lengths[i] for i in group)
        assert longest <= max(shortest * 1.125, shortest + 4)


@pytest.mark.parametrize(
    ("item", "text"),
    [
        (Item(1, 0), "takes token sequences, got no sequence"),
        (Item(1, 0, tensors={"a": np.zeros(1)}), r"got tensors \['a'\]"),
        (Item(1, 0, token_ids=np.zeros(1, np.int32), lengths=(1, 0)), "at least one token"),
        (tokens([1] * 65), "at most 64 tokens a sequence, got 65"),
        (Item(1, 0, token_ids=np.zeros(3, np.int32), lengths=(2,)), "count 2 tokens, got 3"),
        (tokens([1, -1]), "0 to 999 .*'words'.*got -1"),
        (tokens([1000]), "0 to 999 .*'words'.*got 1000"),
    ],
)
def test_bad_token_items_fail_alone(item: Item, text: str) -> None:
    session = Ragged()
    bad, good = run(session, token_variant("ragged"), item, tokens([1, 2]))
    with pytest.raises(InvalidInput, match=text):
        raise bad
    assert np.array_equal(good["logits"], [[3, 5]])
    assert session.runs == [[2]]


def test_an_item_that_breaks_the_run_fails_alone() -> None:
    good, bad, fine = run(
        Ragged(), token_variant("ragged"), tokens([1]), tokens([666]), tokens([2], [3])
    )
    assert isinstance(bad, EngineFault)
    assert np.array_equal(good["logits"], [[1, 1]])
    assert np.array_equal(fine["logits"], [[2, 4], [3, 9]])


def test_a_graph_that_returns_other_rows_is_a_fault() -> None:
    class Wrong(Ragged):
        def run(self, feeds: Any, outputs: object = None, *, token: object = None) -> Any:
            return {"logits": np.zeros((5, 2), np.float32)}

    with pytest.raises(EngineFault, match="for 1 sequences"):
        run(Wrong(), token_variant("ragged"), tokens([1]))


@pytest.mark.parametrize(
    ("tensors", "text"),
    [
        ({"a": np.zeros(2, np.float32)}, r"missing tensors \['b'\].*a float32\[-1\], b"),
        (
            {k: np.zeros(2, np.float32) for k in "abc"},
            r"unknown tensors \['c'\].*a float32\[-1\], b",
        ),
        (
            {"a": np.zeros(2, np.float64), "b": np.zeros(2, np.float32)},
            r"expected tensor a float32\[-1\], got a float64\[2\]",
        ),
        (
            {"a": np.zeros(2, np.float32), "b": np.zeros(3, np.float32)},
            r"expected tensor b float32\[2\], got b float32\[3\]",
        ),
        (
            {"a": np.zeros((2, 1), np.float32), "b": np.zeros(2, np.float32)},
            r"got a float32\[2, 1\]",
        ),
    ],
)
def test_bad_tensor_items_name_what_came_and_what_is_accepted(
    tensors: dict[str, NDArray[Any]], text: str
) -> None:
    fine = Item(2, 0, tensors={k: np.ones(2, np.float32) for k in "ab"})
    bad, good = run(Adder(), ADDER, Item(1, 0, tensors=tensors), fine)
    assert isinstance(bad, WorkerError)
    with pytest.raises(InvalidInput, match=text):
        raise bad
    assert np.array_equal(good["sum"], [2, 2])
