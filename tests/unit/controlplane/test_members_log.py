"""What the log tells of workers that come and go."""

import logging

import pytest

from controlplane.registry import ModelState
from tests.unit.controlplane.fake_fleet import House, model
from tests.unit.controlplane.virtual_loop import run


@pytest.mark.parametrize(
    ("state", "level"), [(ModelState.WARMING, logging.DEBUG), (ModelState.READY, logging.INFO)]
)
def test_silence_of_a_worker_that_serves_nothing_yet_is_no_news(
    caplog: pytest.LogCaptureFixture, state: ModelState, level: int
) -> None:
    caplog.set_level(logging.DEBUG, "controlplane.members")

    async def fall_silent() -> None:
        house = House()
        worker = house.join("quiet", models=(model(state=state),))
        await house.pass_ms(20)
        house.silence(worker)
        await house.pass_ms(2000)
        house.close()

    run(fall_silent())
    told = [(r.levelno, r.message) for r in caplog.records if "suspect" in r.message]
    assert told == [(level, "worker quiet is suspect")]
