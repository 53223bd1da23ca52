"""The Wilson interval against published values, and its properties."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.models.statistics import (
    accuracy_evidence,
    difference_interval,
    paired_difference,
    wilson_interval,
)


def test_known_intervals() -> None:
    # Newcombe 1998, table I, method 3 (Wilson score).
    assert wilson_interval(81, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert wilson_interval(15, 148) == pytest.approx((0.0624, 0.1605), abs=5e-5)
    assert wilson_interval(0, 20) == pytest.approx((0.0, 0.1611), abs=5e-5)
    assert wilson_interval(1, 29) == pytest.approx((0.0061, 0.1718), abs=5e-5)


@given(n=st.integers(1, 5000), percent=st.integers(0, 100))
def test_the_interval_holds_the_share(n: int, percent: int) -> None:
    successes = percent * n // 100
    low, high = wilson_interval(successes, n)
    assert 0 <= low <= successes / n + 1e-12
    assert successes / n - 1e-12 <= high <= 1


@pytest.mark.parametrize(("successes", "n"), [(0, 0), (-1, 3), (4, 3)])
def test_impossible_counts_are_refused(successes: int, n: int) -> None:
    with pytest.raises(ValueError, match="expected 0 <= successes"):
        wilson_interval(successes, n)


def test_evidence_carries_all_numbers() -> None:
    evidence = accuracy_evidence("p", 9, 10)
    assert (evidence.population, evidence.metric, evidence.n) == ("p", "accuracy", 10)
    assert evidence.low < evidence.value == 0.9 < evidence.high


def test_the_unpaired_interval_is_newcombes() -> None:
    # Newcombe 1998, table II, case (a): 56/70 against 48/80, method 10.
    one, other = accuracy_evidence("p", 56, 70), accuracy_evidence("p", 48, 80)
    assert difference_interval(one, other) == pytest.approx((0.0524, 0.3339), abs=5e-4)


def test_the_paired_interval_is_narrower_and_holds_the_difference() -> None:
    one = [True] * 900 + [False] * 90 + [True] * 6 + [False] * 4
    other = [True] * 900 + [False] * 90 + [False] * 6 + [True] * 4
    difference, low, high = paired_difference(one, other)
    assert difference == pytest.approx(0.002)
    assert low < difference < high
    loose = difference_interval(
        accuracy_evidence("p", sum(one), 1000), accuracy_evidence("p", sum(other), 1000)
    )
    assert high - low < (loose[1] - loose[0]) / 3
    same = paired_difference(one, one)
    assert same[0] == 0.0 and same[1] < 0.0 < same[2]
    with pytest.raises(ValueError, match="as many items"):
        paired_difference([True], [])
