"""Watches over classes: quiet on the population of the evidence, soon off on another."""

from __future__ import annotations

import numpy as np
import pytest

from controlplane.policy.drift import FEWEST, SHADOW_EVERY, ClassWatch, Drift


def compared(watch: ClassWatch, expected: float, really: float, seed: int, most: int) -> int:
    """How many soft labels around `really` it takes until the watch is off; `most` if it stays."""
    generator = np.random.default_rng(seed)
    for count in range(1, most + 1):
        right = generator.random() < really
        agreement = float(generator.beta(9.0, 1.0) if right else generator.beta(1.0, 9.0))
        if watch.compare(expected, agreement):
            return count
    return most


@pytest.mark.parametrize("seed", range(10))
def test_on_the_population_of_the_evidence_it_stays_on(seed: int) -> None:
    watch = ClassWatch()
    # Soft labels of a second variant that is right nine times of ten: 0.1 + 0.8 x 0.9.
    assert compared(watch, 0.82, 0.9, seed, 3000) == 3000
    assert watch.on and watch.agreement >= watch.floor


@pytest.mark.parametrize("seed", range(10))
def test_on_another_population_it_is_off_within_a_hundred_comparisons(seed: int) -> None:
    watch = ClassWatch()
    assert FEWEST <= compared(watch, 0.82, 0.6, seed, 100) < 100
    assert not watch.on
    assert watch.agreement < watch.floor


def sure(watch: ClassWatch, mean: float, usual: float, seed: int, most: int) -> int:
    """How many first answers, sure around `mean`, it takes until the watch is off."""
    generator = np.random.default_rng(seed)
    for count in range(1, most + 1):
        if watch.answered(float(generator.beta(12.0 * mean, 12.0 * (1.0 - mean))), usual):
            return count
    return most


@pytest.mark.parametrize("seed", range(10))
def test_first_answers_as_sure_as_the_evidence_or_surer_leave_it_on(seed: int) -> None:
    watch = ClassWatch()
    assert sure(watch, 0.86, 0.865, seed, 3000) == 3000
    assert sure(watch, 0.95, 0.865, seed, 1000) == 1000
    assert watch.on and not watch.cause


@pytest.mark.parametrize("seed", range(10))
def test_less_sure_first_answers_turn_it_off_within_five_hundred(seed: int) -> None:
    watch = ClassWatch()
    assert sure(watch, 0.80, 0.865, seed, 500) < 500
    assert not watch.on
    assert watch.sureness < watch.sureness_floor
    assert "by their confidence" in watch.cause


def test_off_stays_off_whatever_comes() -> None:
    watch = ClassWatch()
    compared(watch, 0.95, 0.2, 1, 100)
    for _ in range(500):
        assert not watch.compare(0.5, 1.0)
    assert not watch.on


def test_shadows_are_at_most_their_share_also_after_a_long_rest() -> None:
    watch = ClassWatch()
    taken = 0
    for answers in range(1, 5001):
        watch.answered(0.9, 0.9)
        if answers > 2000 and watch.may_shadow():
            watch.shadowed()
            taken += 1
        assert taken * SHADOW_EVERY <= answers
    assert taken * SHADOW_EVERY >= 3000


def test_nothing_is_shadowed_any_more_when_it_is_off() -> None:
    watch = ClassWatch()
    for _ in range(200):
        watch.answered(0.9, 0.9)
    assert watch.may_shadow()
    compared(watch, 0.95, 0.1, 1, 100)
    assert not watch.may_shadow()


def test_classes_are_watched_apart_and_renewed_together() -> None:
    drift = Drift()
    compared(drift.of("movies"), 0.95, 0.1, 1, 100)
    assert drift.of("other").on
    assert [name for name, _ in drift] == ["movies", "other"]
    assert not drift.of("movies").on
    drift.renew()
    assert drift.of("movies").on
    assert drift.of("movies").compared == 0
