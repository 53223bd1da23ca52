"""Intervals of ratios are of whole rounds, the same ones before and after."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.isolation.interval import ratio_interval

_TIMES = st.lists(st.floats(1.0, 100.0), min_size=1, max_size=20)


@settings(max_examples=40, deadline=None)
@given(st.lists(_TIMES, min_size=2, max_size=8), st.floats(0.5, 4.0))
def test_what_all_took_longer_is_sure_whatever_the_rounds(
    rounds: list[list[float]], factor: float
) -> None:
    after = [[factor * time for time in times] for times in rounds]
    interval = ratio_interval(rounds, after, np.random.default_rng(1))
    assert interval is not None
    assert interval[0] == pytest.approx(factor)
    assert interval[1] == pytest.approx(factor)


def test_rounds_that_differ_widen_the_interval() -> None:
    generator = np.random.default_rng(2)
    before = [list(generator.exponential(10.0, 50)) for _ in range(20)]
    after = [list(generator.exponential(10.0, 50)) for _ in range(20)]
    found = ratio_interval(before, after, generator)
    assert found is not None
    low, high = found
    assert low < 1.0 < high
    fewer = ratio_interval(before[:4], after[:4], generator)
    assert fewer is not None
    assert fewer[1] - fewer[0] > high - low


def test_one_round_or_nothing_measured_has_no_interval() -> None:
    generator = np.random.default_rng(3)
    assert ratio_interval([[1.0]], [[2.0]], generator) is None
    assert ratio_interval([[1.0], []], [[], []], generator) is None
    # A round without one is drawn with the others.
    assert ratio_interval([[1.0], [1.0]], [[2.0], []], generator) == (2.0, 2.0)


def test_rounds_are_played_of_both() -> None:
    with pytest.raises(ValueError, match="2 rounds before and 1 after"):
        ratio_interval([[1.0], [1.0]], [[2.0]], np.random.default_rng(4))
