"""The fixture's figures, exactly, and that they keep their shares on any machine."""

from __future__ import annotations

import pytest

from bench.drill.arithmetic import FIXTURE


def test_the_fixture_offers_nearly_what_may_be_used() -> None:
    assert FIXTURE.offered() == pytest.approx(16_368.8)
    assert FIXTURE.protected == pytest.approx(16_800.0)
    assert round(100 * FIXTURE.share(FIXTURE.offered()), 2) == 97.43


def test_a_surge_is_too_much_and_the_compact_variant_takes_it() -> None:
    surge = FIXTURE.surge
    assert FIXTURE.offered(surge) == pytest.approx(20_461.0)
    assert FIXTURE.share(FIXTURE.offered(surge)) > 1.2
    assert FIXTURE.saved(surge) == pytest.approx(5_173.5)
    assert FIXTURE.left(surge) == pytest.approx(15_287.5)
    assert round(100 * FIXTURE.share(FIXTURE.left(surge)), 3) == 90.997


def test_qualities_and_floor() -> None:
    assert FIXTURE.full_quality == 0.92
    assert FIXTURE.compact_quality == 0.86
    assert FIXTURE.floor == 0.84


@pytest.mark.parametrize(("units", "time"), [(1, 1.0), (2, 0.1), (24, 0.5)])
def test_scaled_to_a_machine_the_shares_stay(units: int, time: float) -> None:
    scaled = FIXTURE.scaled(units, time)
    assert scaled.protected == pytest.approx(units * 700.0)
    for factor in (1.0, FIXTURE.surge):
        for whole, part in (
            (FIXTURE.offered(factor), scaled.offered(factor)),
            (FIXTURE.left(factor), scaled.left(factor)),
        ):
            assert scaled.share(part) == pytest.approx(FIXTURE.share(whole))
    assert scaled.kinds[0].full_ms == pytest.approx(56.8 * time)
