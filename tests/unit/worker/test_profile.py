from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.profile import (
    DEFAULT_LENGTHS,
    Sample,
    WarmPlan,
    fit,
    nonnegative_least_squares,
    reference_length,
    warm_plan,
)


def test_usual_lengths_are_repeated_alone_and_together() -> None:
    plan = warm_plan((), 512)
    assert plan.shapes[:5] == tuple((length,) for length in DEFAULT_LENGTHS)
    assert plan.shapes[5] == (8, 16, 32, 64)


def test_long_lengths_are_run_once() -> None:
    assert warm_plan((), 512).long == ((512,),)
    assert warm_plan((8, 32), 512).long == ((128,),)
    assert warm_plan((16, 128, 256, 384), 512) == WarmPlan(((16,), (128,)), ((256,), (384,)))
    assert warm_plan((256,), 256) == WarmPlan(((256,),), ())


def test_shapes_never_exceed_what_the_variant_takes() -> None:
    assert warm_plan((8, 64, 512), 32) == WarmPlan(((8,), (32,)), ())
    assert warm_plan((), 4) == WarmPlan(((4,),), ())


def test_the_reference_is_a_single_row_that_is_measured() -> None:
    assert reference_length(warm_plan((), 512).shapes) == 32
    assert reference_length(()) == 0


@given(
    s0=st.floats(10, 1e4),
    s1=st.floats(0.1, 1e3),
    s2=st.floats(0.001, 1),
    seed=st.integers(0, 1000),
)
def test_fit_recovers_the_coefficients_it_was_made_from(
    s0: float, s1: float, s2: float, seed: int
) -> None:
    shapes = [*warm_plan((), 512).shapes, (17, 90), (3, 3, 3, 120)]
    samples = [
        Sample(shape, s0 + s1 * sum(shape) + s2 * sum(n * n for n in shape)) for shape in shapes
    ]
    profile = fit("v", samples, 32)
    for shape in shapes:
        exact = s0 + s1 * sum(shape) + s2 * sum(n * n for n in shape)
        assert profile.predict_us(shape) == pytest.approx(exact, rel=1e-6)
    assert profile.sigma < 1e-6
    assert profile.samples == len(samples)


def test_one_disturbed_run_does_not_move_the_fit() -> None:
    shapes = warm_plan((), 512).shapes
    samples = [Sample(shape, 100.0 + 5.0 * sum(shape)) for shape in shapes for _ in range(5)]
    samples.append(Sample((8,), 50_000.0))
    profile = fit("v", samples, 32)
    assert profile.predict_us((8,)) == pytest.approx(140.0)
    assert profile.sigma == pytest.approx(0.0, abs=1e-9)


def test_percentiles_and_spread_come_from_the_reference_and_all_ratios() -> None:
    generator = np.random.default_rng(5)
    samples = [
        Sample((n,), float((100 + n) * generator.normal(1, 0.1)))
        for n in (8, 32, 128)
        for _ in range(2000)
    ]
    profile = fit("v", samples, 32)
    assert profile.p50_us == pytest.approx(132, rel=0.02)
    assert profile.p95_us == pytest.approx(132 * 1.1645, rel=0.02)
    assert profile.p99_us == pytest.approx(132 * 1.2326, rel=0.03)
    assert profile.sigma == pytest.approx(0.1, rel=0.05)


def test_a_tensor_variant_has_only_a_fixed_price() -> None:
    profile = fit("v", [Sample((), 200.0), Sample((), 220.0), Sample((), 900.0)], 0)
    assert profile.predict_us(()) == pytest.approx(220.0)
    assert (profile.s1_us_per_token, profile.s2_us_per_token2) == (0.0, 0.0)


def test_without_a_square_what_is_far_larger_is_priced_by_the_line() -> None:
    samples = [Sample((n,), 50.0 + 0.001 * n + 1e-9 * n * n) for n in (1, 1000, 100_000)]
    profile = fit("v", samples, 1000, quadratic=False)
    assert profile.s2_us_per_token2 == 0.0
    assert profile.predict_us((10_000_000,)) == pytest.approx(50 + 10_000, rel=0.15)


def test_no_samples_are_an_error() -> None:
    with pytest.raises(ValueError, match="at least one"):
        fit("v", [], 8)


@given(
    rows=st.lists(st.lists(st.floats(0, 100), min_size=3, max_size=3), min_size=3, max_size=12),
    data=st.data(),
)
def test_no_other_nonnegative_point_is_better(rows: list[list[float]], data: st.DataObject) -> None:
    matrix = np.array(rows)
    target = np.array(
        data.draw(st.lists(st.floats(-50, 100), min_size=len(rows), max_size=len(rows)))
    )
    best = nonnegative_least_squares(matrix, target)
    assert (best >= 0).all()
    smallest = np.linalg.norm(matrix @ best - target)
    generator = np.random.default_rng(0)
    for other in (*(best * generator.uniform(0.5, 1.5, 3) for _ in range(20)), np.zeros(3)):
        assert smallest <= np.linalg.norm(matrix @ other - target) * (1 + 1e-7) + 1e-7
