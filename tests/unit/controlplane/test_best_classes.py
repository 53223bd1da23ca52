"""The best class of each row of logits, and how sure its variant is."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from controlplane.policy.records import TensorValue
from controlplane.rpc.convert import best_classes


@given(
    logits=arrays.arrays(
        np.float32,
        st.tuples(st.integers(1, 5), st.integers(1, 7)),
        elements=st.floats(-200, 200, width=32),
    )
)
def test_it_is_the_first_of_the_largest_with_its_softmax(
    logits: np.ndarray[tuple[int, int], np.dtype[np.float32]],
) -> None:
    found = best_classes(TensorValue("logits", "float32", logits.shape, logits.tobytes()))
    weights = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    assert [index for index, _ in found] == logits.argmax(axis=1).tolist()
    expected = (weights.max(axis=1) / weights.sum(axis=1)).tolist()
    assert [score for _, score in found] == pytest.approx(expected)


def test_logits_that_are_no_numbers_have_no_score() -> None:
    data = np.array([[np.nan, 1.0], [np.inf, np.inf]], np.float32)
    found = best_classes(TensorValue("logits", "float32", data.shape, data.tobytes()))
    assert all(np.isnan(score) for _, score in found)
