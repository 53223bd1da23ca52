"""The online correction: its exact steps, its bounds and its freedom from drift."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.policy.corrections import GAIN, SPREAD_CAP, SPREAD_FLOOR, Corrections

RATIOS = st.floats(1e-6, 1e6, allow_nan=False)


def test_one_completion_moves_its_variant_by_the_gain_and_others_by_half() -> None:
    corrections = Corrections([0.065, 0.065])
    corrections.observe(0, 1.4)
    assert corrections.factors[0] == pytest.approx(1.0 + GAIN * 0.4)
    assert corrections.factors[1] == pytest.approx(math.sqrt(1.0 + GAIN * 0.4))
    assert corrections.factors[1] == pytest.approx(1.0 + GAIN / 2 * 0.4, abs=1e-3)


def test_the_spread_follows_the_error() -> None:
    corrections = Corrections([0.065])
    corrections.observe(0, 1.4)
    expected = 1.25 * (0.065 / 1.25 + GAIN * (0.4 - 0.065 / 1.25))
    assert corrections.sigmas[0] == pytest.approx(expected)


def test_a_lasting_slowdown_is_learnt_and_forgotten() -> None:
    corrections = Corrections([0.1, 0.1])
    for _ in range(60):
        corrections.observe(0, 2.0)
    assert corrections.factors[0] == pytest.approx(2.0, rel=1e-3)
    assert corrections.factors[1] == pytest.approx(math.sqrt(2.0), rel=1e-3)
    for _ in range(60):
        corrections.observe(0, 1.0)
    assert corrections.factors == pytest.approx([1.0, 1.0], rel=1e-3)


@given(st.lists(st.tuples(st.integers(0, 2), RATIOS), max_size=200))
def test_factors_stay_positive_and_spreads_bounded(steps: list[tuple[int, float]]) -> None:
    corrections = Corrections([0.0, 0.1, 5.0])
    for variant, ratio in steps:
        corrections.observe(variant, ratio)
    assert all(0.0 < factor < math.inf for factor in corrections.factors)
    assert all(SPREAD_FLOOR <= sigma <= SPREAD_CAP for sigma in corrections.sigmas)


@given(RATIOS)
def test_one_frozen_run_moves_a_factor_by_less_than_half(ratio: float) -> None:
    corrections = Corrections([0.1])
    corrections.observe(0, ratio)
    assert 1.0 - GAIN <= corrections.factors[0] < 1.5


def test_a_variant_that_never_runs_does_not_drift_under_heavy_tails() -> None:
    corrections = Corrections([0.1, 0.1])
    generator = np.random.default_rng(7)
    for ratio in 3.0 * generator.lognormal(-0.5, 1.0, 50_000):
        corrections.observe(0, float(ratio))
    assert corrections.factors[1] == pytest.approx(math.sqrt(corrections.factors[0]), rel=1e-6)
    assert corrections.factors[1] < 4.0


def test_a_new_table_keeps_what_was_learnt_of_the_variants_that_stay() -> None:
    corrections = Corrections([0.1, 0.1, 0.1])
    for _ in range(30):
        corrections.observe(2, 1.5)
    carried = corrections.carried({0: 2}, [0.1, 0.2], [1.0, 1.0])
    assert carried.factors[0] == pytest.approx(corrections.factors[2])
    assert carried.sigmas[0] == corrections.sigmas[2]
    assert carried.factors[1] == pytest.approx(corrections.factors[0])
    assert carried.sigmas[1] == 0.2


def test_a_changed_profile_does_not_unlearn_what_a_variant_takes() -> None:
    corrections = Corrections([0.1, 0.1])
    for _ in range(60):
        corrections.observe(0, 1.5)
    carried = corrections.carried({0: 0, 1: 1}, [0.1, 0.1], [2.0, 2.0])
    assert carried.factors[0] == pytest.approx(2.0 * corrections.factors[0])
    assert carried.factors[1] == pytest.approx(corrections.factors[1])
