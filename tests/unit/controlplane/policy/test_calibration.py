"""Predicted against observed on-time shares."""

from controlplane.policy.calibration import DECILES, Calibration, Decile


def test_runs_are_counted_in_the_decile_of_their_chance() -> None:
    calibration = Calibration()
    calibration.settle(0.92, True)
    calibration.settle(0.98, False)
    calibration.settle(1.0, True)
    calibration.settle(0.0, False)
    deciles = calibration.deciles()
    assert len(deciles) == DECILES
    assert deciles[-1] == Decile(3, (0.92 + 0.98 + 1.0) / 3, 2 / 3)
    assert deciles[0] == Decile(1, 0.0, 0.0)
    assert deciles[5] == Decile(0, 0.0, 0.0)
