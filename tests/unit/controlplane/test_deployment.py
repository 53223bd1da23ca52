"""Configuration against what is deployed."""

import pytest

from controlplane.config import ClassConfig
from controlplane.deployment import unknown_prohibitions
from tests.unit.controlplane.fake_fleet import House, model
from tests.unit.controlplane.virtual_loop import run

CLASSES = {
    "strict": ClassConfig(prohibited=("fsat", "best")),
    "loose": ClassConfig(prohibited=("zzz",)),
    "free": ClassConfig(),
}
MISSPELT = "class 'strict' prohibits 'fsat', which no model has; did you mean 'fast'?"
UNKNOWN = "class 'loose' prohibits 'zzz', which no model has; variants: best, fast"


def test_a_misspelt_prohibition_is_told_with_the_nearest_name() -> None:
    assert unknown_prohibitions(CLASSES, [model("a"), model("b")]) == (MISSPELT, UNKNOWN)
    assert unknown_prohibitions({"c": ClassConfig(prohibited=("best",))}, [model()]) == ()


def test_it_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def join_twice() -> None:
        house = House(classes=CLASSES)
        assert not caplog.records
        house.join("w1")
        house.join("w2")
        house.close()

    run(join_twice())
    told = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert told == [MISSPELT, UNKNOWN]
