"""The empirical chance to be on time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.policy.punctuality import Punctuality

RATIOS = st.floats(0.01, 100.0)


def test_it_starts_as_the_profile_says() -> None:
    tight, loose = Punctuality(0.05), Punctuality(0.3)
    assert tight.share_within(1.0) == pytest.approx(0.5, abs=0.02)
    assert tight.share_within(1.2) > 0.98 > loose.share_within(1.2)
    assert tight.share_within(1.2) < 1.0
    assert tight.share_within(0.0) == 0.0
    assert tight.share_within(100.0) == 1.0


@given(st.lists(RATIOS, max_size=50), RATIOS, RATIOS)
def test_more_time_is_never_a_smaller_chance(seen: list[float], one: float, other: float) -> None:
    punctuality = Punctuality(0.1)
    for ratio in seen:
        punctuality.observe(ratio)
    shorter, longer = sorted((one, other))
    assert 0.0 <= punctuality.share_within(shorter) <= punctuality.share_within(longer) <= 1.0


def test_it_becomes_what_is_observed_whatever_the_profile_said() -> None:
    punctuality = Punctuality(0.05)
    for turn in range(2000):
        punctuality.observe(3.0 if turn % 10 == 0 else 1.0)
    assert punctuality.share_within(1.5) == pytest.approx(0.9, abs=0.03)
    assert punctuality.share_within(3.2) == pytest.approx(1.0, abs=0.01)


def test_old_observations_fade() -> None:
    punctuality = Punctuality(0.05)
    for _ in range(1000):
        punctuality.observe(2.0)
    assert punctuality.share_within(1.5) < 0.05
    for _ in range(1000):
        punctuality.observe(1.0)
    assert punctuality.share_within(1.5) > 0.95


def test_hearsay_counts_for_less_than_what_was_seen() -> None:
    seen, heard = Punctuality(0.05), Punctuality(0.05)
    for _ in range(20):
        seen.observe(2.0)
        heard.observe(2.0, 0.2)
    assert seen.share_within(1.5) < heard.share_within(1.5) < Punctuality(0.05).share_within(1.5)


def test_a_run_that_was_cut_short_took_longer_than_that() -> None:
    punctuality = Punctuality(0.1)
    for _ in range(50):
        punctuality.observe(1.0)
    before = punctuality.share_within(1.4)
    for _ in range(20):
        punctuality.at_least(1.5)
    assert punctuality.share_within(1.4) < before - 0.1
    assert punctuality.share_within(8.1) == 1.0


def test_a_run_cut_short_where_nothing_was_ever_seen_is_counted_there() -> None:
    punctuality = Punctuality(0.05)
    for _ in range(30_000):
        punctuality.observe(0.5)
    punctuality.at_least(7.9)
    assert punctuality.share_within(7.0) < 1.0


def test_misses_widen_the_margin_and_hits_take_it_back() -> None:
    punctuality = Punctuality(0.05)
    before = punctuality.share_within(1.2)
    for _ in range(10):
        punctuality.settle(0.95, False)
    assert punctuality.margin == pytest.approx(1.19)
    assert punctuality.share_within(1.2) < before
    for _ in range(1000):
        punctuality.settle(0.95, True)
    assert punctuality.margin == 1.0


def test_the_margin_stays_where_as_many_are_on_time_as_foretold() -> None:
    punctuality = Punctuality(0.05)
    for turn in range(1000):
        punctuality.settle(0.9, turn % 10 != 0)
    assert punctuality.margin < 1.05


def test_the_margin_is_bounded() -> None:
    punctuality = Punctuality(0.05)
    for _ in range(1000):
        punctuality.settle(1.0, False)
    assert punctuality.margin == 1.5


def test_a_long_life_keeps_the_figures_finite() -> None:
    punctuality = Punctuality(0.05)
    for _ in range(50_000):
        punctuality.observe(1.0)
    assert punctuality.share_within(1.1) == pytest.approx(1.0, abs=1e-6)
