"""Temperatures, beta maps, calibration errors and gains against data with known answers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from worker.models.confidence import (
    FEWEST_ITEMS,
    Fit,
    calibration_error,
    error_by_chance,
    escalation,
    fit_confidence,
    fit_temperature,
    log_odds,
)


def drawn(
    n: int, stretch: float, seed: int = 1, classes: int = 3
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Logits that are `stretch` times too far apart for the labels that were drawn by them."""
    generator = np.random.default_rng(seed)
    logits = generator.normal(0.0, 1.5, (n, classes))
    powers = np.exp(logits)
    chances = powers / powers.sum(axis=1, keepdims=True)
    labels = (generator.random((n, 1)) > np.cumsum(chances, axis=1)).sum(axis=1)
    return logits * stretch, np.minimum(labels, classes - 1)


@pytest.mark.parametrize("stretch", [0.5, 1.0, 4.0])
@pytest.mark.parametrize("classes", [2, 3])
def test_the_temperature_undoes_a_stretch(stretch: float, classes: int) -> None:
    logits, labels = drawn(20_000, stretch, classes=classes)
    assert fit_temperature(logits, labels) == pytest.approx(stretch, rel=0.06)


def test_a_temperature_mends_the_calibration_error() -> None:
    logits, labels = drawn(20_000, 4.0)
    right = logits.argmax(axis=1) == labels
    fit = fit_confidence(logits, labels)
    assert fit.beta == ()
    assert calibration_error(Fit(1.0).confidences(logits), right) > 0.15
    assert calibration_error(fit.confidences(logits), right) < 0.015


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("truth", [(2.0, 0.6, 0.3), (-1.0, 2.0, -1.5)])
def test_a_beta_map_is_taken_where_a_temperature_does_not_do(
    classes: int, truth: tuple[float, float, float]
) -> None:
    logits, _ = drawn(20_000, 1.5, classes=classes)
    generator = np.random.default_rng(8)
    right = generator.random(len(logits)) < Fit(1.0, truth).confidences(logits)
    labels = np.where(right, logits.argmax(axis=1), logits.argmin(axis=1))
    fit = fit_confidence(logits, labels)
    assert len(fit.beta) == 3
    plain = Fit(fit_temperature(logits, labels))
    error = calibration_error(fit.confidences(logits), right)
    assert error < 0.012
    assert error < calibration_error(plain.confidences(logits), right)


@settings(deadline=None, max_examples=15)
@given(st.integers(0, 2**32 - 1), st.integers(2, 4))
def test_confidence_never_falls_as_the_top_probability_grows(seed: int, classes: int) -> None:
    generator = np.random.default_rng(seed)
    logits = generator.normal(0.0, 2.0, (600, classes))
    # Right with a chance that has nothing to do with what the logits say, or falls with it.
    sure = log_odds(logits, 1.0)
    right = generator.random(600) < 0.5 + 0.4 * np.sin(sure * generator.normal())
    labels = np.where(right, logits.argmax(axis=1), logits.argmin(axis=1))
    fit = fit_confidence(logits, labels)
    order = np.argsort(log_odds(logits, fit.temperature))
    confidence = fit.confidences(logits)[order]
    assert (np.diff(confidence) > -1e-3).all()
    assert np.isfinite(confidence).all()


def test_one_unsure_item_is_as_sure_as_the_formula_says() -> None:
    logits = np.array([[2.0, 0.0, -1.0], [0.0, 0.0, 3.0]])
    powers = np.exp(logits / 1.5)
    top = powers.max(axis=1) / powers.sum(axis=1)
    assert Fit(1.5).confidences(logits) == pytest.approx(top)
    assert Fit(1.5, (1.0, 1.0, 0.0)).confidences(logits) == pytest.approx(top)
    scores = -0.5 * np.log(top) - 2.0 * np.log(1 - top) - 1.5
    mapped = Fit(1.5, (-0.5, 2.0, -1.5)).confidences(logits)
    assert mapped == pytest.approx(1 / (1 + np.exp(-scores)))


def test_answers_that_are_all_right_or_all_wrong_keep_the_map_finite() -> None:
    logits, _ = drawn(600, 1.0)
    for labels in (logits.argmax(axis=1), logits.argmin(axis=1)):
        fit = fit_confidence(logits, labels)
        confidence = fit.confidences(logits)
        assert np.isfinite([fit.temperature, *fit.beta, *confidence]).all()
        assert abs(float(confidence.mean()) - float(labels[0] == logits[0].argmax())) < 0.1


def test_the_surest_answers_keep_their_order_and_stay_finite() -> None:
    logits = np.array([[50.0, 0.0], [500.0, 0.0], [1e6, 0.0]])
    odds = log_odds(logits, 1.0)
    assert odds.tolist() == sorted(set(odds.tolist()))
    assert np.isfinite(Fit(1e-3, (-1.5, 1.5, 0.1)).confidences(logits)).all()


def test_the_calibration_error_of_answers_that_are_always_sure_is_their_share_wrong() -> None:
    right = np.arange(1000) % 4 > 0
    assert calibration_error(np.ones(1000), right) == pytest.approx(0.25)


def test_perfect_confidences_rarely_exceed_what_chance_allows() -> None:
    generator = np.random.default_rng(3)
    confidence = generator.uniform(0.5, 1.0, 800)
    allowed = error_by_chance(confidence)
    errors = [calibration_error(confidence, generator.random(800) < confidence) for _ in range(100)]
    assert np.mean(np.array(errors) > allowed) < 0.15
    assert allowed > error_by_chance(confidence, 0.5) > 0.0
    assert allowed > error_by_chance(generator.uniform(0.5, 1.0, 8000))


def test_logits_that_are_always_right_get_the_lowest_temperature() -> None:
    labels = [item % 2 for item in range(FEWEST_ITEMS)]
    logits = np.eye(2)[labels]
    assert fit_temperature(logits, labels) == pytest.approx(1e-3, rel=0.01)
    assert fit_confidence(logits, labels).temperature >= 1e-3


def test_too_few_items_and_unusable_logits_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 500 items"):
        fit_temperature(np.zeros((499, 2)), [0] * 499)
    one = np.ones(499)
    with pytest.raises(ValueError, match="got 499"):
        escalation("p", "v", one, one > 0, one > 0)
    with pytest.raises(ValueError, match="shape"):
        fit_confidence(np.zeros(600), [0] * 600)
    with pytest.raises(ValueError, match="finite"):
        fit_confidence(np.full((600, 2), np.nan), [0] * 600)
    with pytest.raises(ValueError, match="labels of their classes"):
        fit_confidence(np.zeros((600, 2)), [2] * 600)


def test_the_gain_is_large_where_the_cheap_one_guesses_and_nothing_where_it_is_sure() -> None:
    generator = np.random.default_rng(2)
    confidence = generator.uniform(0.5, 1.0, 12_000)
    right = generator.random(12_000) < confidence
    there = generator.random(12_000) < 0.9
    table = escalation("p", "big", confidence, right, there)
    assert table.to == "big"
    assert sum(table.counts) == 12_000
    for sure in (0.55, 0.7, 0.85, 0.97):
        assert table.gain(sure) == pytest.approx(0.9 - sure, abs=0.05)
    assert table.gain(0.0) == table.gains[0]
    for at, share in zip(table.confidences[1:-1], table.shares_right[1:-1], strict=True):
        assert share == pytest.approx(at + 0.02, abs=0.05)


def test_equal_confidences_are_in_one_step() -> None:
    confidence = np.repeat([0.6, 0.7, 0.99999999, 1.0], [100, 300, 300, 300])
    right = np.arange(1000) % 3 > 0
    there = (np.arange(1000) % 10 > 0) | (confidence < 0.65)
    table = escalation("p", "big", confidence, right, there)
    assert set(table.confidences) <= {0.0, 0.7, 1.0}
    assert set(table.counts) <= {100, 300, 400, 600, 900, 1000}


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 2**32 - 1), st.integers(1, 30))
def test_gains_fall_and_keep_the_mean_gain(seed: int, levels: int) -> None:
    generator = np.random.default_rng(seed)
    confidence = generator.integers(0, levels, 700) / levels
    right, there = generator.random(700) < 0.7, generator.random(700) < 0.8
    table = escalation("p", "big", confidence, right, there)
    assert all(a >= b for a, b in zip(table.gains, table.gains[1:], strict=False))
    assert all(a < b for a, b in zip(table.confidences, table.confidences[1:], strict=False))
    for values, mean in (
        (table.gains, float(there.mean() - right.mean())),
        (table.shares_right, float(right.mean())),
    ):
        weighted = sum(value * n for value, n in zip(values, table.counts, strict=True)) / 700
        assert weighted == pytest.approx(mean, abs=1e-5)
