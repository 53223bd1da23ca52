"""What a pool foretells and learns."""

import pytest

from controlplane.policy.foresight import Foresight
from controlplane.policy.profiles import VariantTable
from tests.unit.controlplane.policy.world import BEST, FAST, MS, TABLE, candidate


def ended(foresight: Foresight, needed_ms: float, *, whole: bool = True) -> None:
    foresight.ended(
        BEST,
        promised_ns=10 * MS,
        needed_ns=int(needed_ms * MS),
        slack_ns=20 * MS,
        chance=0.99,
        whole=whole,
    )


def test_estimates_are_corrected_and_of_the_mask() -> None:
    foresight = Foresight(TABLE)
    foresight.completed(BEST, 10 * MS, 20 * MS, whole=True)
    best, fast = foresight.estimates((0, 1), [10 * MS, 4 * MS])
    assert best.predicted_ns == pytest.approx(11.5 * MS)
    assert (best.quality, fast.quality) == (0.9, 0.8)
    assert 4 * MS < fast.predicted_ns < 4.6 * MS
    assert [e.variant for e in foresight.estimates((0, 1), [10 * MS, 4 * MS], 0b10)] == [1]


def test_a_run_cut_short_is_heard_when_it_took_longer_than_foretold() -> None:
    foresight = Foresight(TABLE)
    foresight.completed(BEST, 10 * MS, 5 * MS, whole=False)
    assert foresight.corrections.factors == [1.0, 1.0]
    foresight.completed(BEST, 10 * MS, 15 * MS, whole=False)
    assert foresight.corrections.factors[0] > 1.0


def test_late_runs_lower_the_chance_of_their_variant_most() -> None:
    foresight = Foresight(TABLE)
    for _ in range(20):
        ended(foresight, 21.0)
    best, fast = foresight.estimates((0, 1), [10 * MS, 4 * MS])
    assert best.chance(15 * MS, 0.0) < 0.7
    assert fast.chance(6 * MS, 0.0) > best.chance(15 * MS, 0.0)
    last = foresight.calibration.deciles()[-1]
    assert (last.runs, last.observed) == (20, 0.0)


def test_a_cancelled_run_says_nothing_about_the_chance_it_was_given() -> None:
    foresight = Foresight(TABLE)
    ended(foresight, 5.0, whole=False)
    assert foresight.calibration.deciles()[-1].runs == 0
    ended(foresight, 20.0, whole=False)
    assert foresight.calibration.deciles()[-1].runs == 1


def test_runs_of_variants_that_are_gone_are_not_heard() -> None:
    foresight = Foresight(VariantTable.build([FAST]))
    ended(foresight, 21.0)
    foresight.completed(BEST, 10 * MS, 20 * MS, whole=True)
    assert foresight.corrections.factors == [1.0]


def test_what_is_known_is_carried_to_a_new_table_by_name() -> None:
    before = Foresight(TABLE)
    for _ in range(20):
        before.completed(BEST, 10 * MS, 20 * MS, whole=True)
        ended(before, 21.0)
    middle = candidate("middle", 0.85, 6.0)
    slower = candidate("best", 0.9, 20.0)
    after = before.carried(VariantTable.build([FAST, middle, slower]))
    assert after.punctuality[0] is before.punctuality[0]
    assert after.punctuality[1].share_within(1.2) > 0.95
    # It was seen to take about 20 ms, and that is what its new profile says.
    assert after.estimates((0,), [20 * MS])[0].predicted_ns == pytest.approx(20 * MS, rel=0.1)
    assert after.calibration.deciles()[-1].runs == 20
