"""The drill on a real cluster: what does not hang on how busy the machine is."""

from __future__ import annotations

from bench.drill.run import DrillSettings, drill
from bench.drill.scene import ELIGIBLE, FULL, LATE, REFUSED


def test_a_fallback_below_its_floor_answers_nobody() -> None:
    settings = DrillSettings(workers=2, seconds=1.0, time=0.05, only=("chosen", "floor violated"))
    chosen, violated = drill(settings)
    for played in (chosen, violated):
        floors = [check for check in played.checks if check.what.startswith("lowest quality")]
        assert len(floors) == 2 and all(check.ok for check in floors), floors
        assert len(played.live) == len(played.scene.asks)
        assert not any(each.ending == "lost" for each in played.live)
    # On a machine that is busy with other things some are late before they can be refused.
    eligible = [each for each in violated.live if each.ask.klass == ELIGIBLE]
    assert {each.ending for each in eligible} <= {REFUSED, LATE}
    assert any(each.ending == REFUSED for each in eligible)
    assert {each.variant for each in violated.live if each.variant} == {FULL}
