"""The drill's scenes on the virtual clock: everything is as it must be."""

from __future__ import annotations

import pytest

from bench.drill.arithmetic import FIXTURE
from bench.drill.model import lines, table
from bench.drill.run import DrillSettings, chosen, drill, report
from bench.drill.scene import COMPACT, ELIGIBLE, FULL, TOKENS, Answered, Ask, figures

SETTINGS = DrillSettings(workers=2, seconds=4.0, live=False)


@pytest.mark.parametrize("scene", [scene.name for scene in chosen(SETTINGS)])
def test_a_scene_is_as_it_must_be(scene: str) -> None:
    only = DrillSettings(workers=2, seconds=4.0, live=False, only=(scene,))
    (played,) = drill(only)
    assert played.ok, [check for check in played.checks if not check.ok]
    assert report(only, [played]).summary[f"{scene}.ok"] == 1.0


def test_unknown_scenes_are_told_the_known() -> None:
    with pytest.raises(ValueError, match="no scene 'fire'; scenes: offered, surge"):
        chosen(DrillSettings(workers=2, only=("fire",)))


def test_the_variants_take_what_the_fixture_says() -> None:
    costs = lines(FIXTURE)
    for kind in FIXTURE.kinds:
        tokens = TOKENS[kind.name]
        for name, ms in ((FULL, kind.full_ms), (COMPACT, kind.compact_ms)):
            line = costs[name]
            assert line.fixed >= 0.0
            assert line.fixed + line.per_token * tokens == pytest.approx(ms)
    variants = table(FIXTURE, FIXTURE.compact_quality)
    assert [each.quality for each in variants.candidates] == [0.92, 0.86]


def test_requests_come_at_the_fixtures_rates_and_shares() -> None:
    # A worker is 0.8 of a unit, so these are the fixture's 24.
    (scene,) = chosen(DrillSettings(workers=30, time=1.0, seconds=10.0, only=("offered",)))
    shorts = [ask for ask in scene.asks if ask.kind == "short"]
    longs = [ask for ask in scene.asks if ask.kind == "long"]
    assert (len(shorts), len(longs)) == (1400, 180)
    assert sum(ask.klass == ELIGIBLE for ask in shorts) == 840
    assert sum(ask.klass == ELIGIBLE for ask in longs) == 90
    assert [ask.at_ns for ask in scene.asks] == sorted(ask.at_ns for ask in scene.asks)


def test_figures_of_a_scene() -> None:
    ask = Ask(0, "short", ELIGIBLE)
    found = figures(
        [
            Answered(ask, "on-time", COMPACT, 0.86, 3.0, 5.0),
            Answered(ask, "on-time", FULL, 0.92, 6.0, 9.0),
            Answered(ask, "late"),
            Answered(ask, "refused"),
        ],
        seconds=2.0,
    )
    assert (found.on_time, found.refused, found.lost) == (0.5, 0.25, 0)
    assert found.on_time_of_admitted == pytest.approx(2 / 3)
    assert (found.cpu_ms_per_s, found.compact_share, found.lowest_quality) == (4.5, 0.5, 0.86)
    assert found.p99_ms == 9.0
