"""The event loop's lag: stalls are seen, forgotten soon, and one is no trend."""

from __future__ import annotations

import asyncio

import pytest

from controlplane.lag import EVERY_NS, LoopLag, smoothed
from tests.unit.controlplane.virtual_loop import VirtualLoop

MS = 1_000_000


def test_a_backlog_is_seen_soon_and_forgotten_soon() -> None:
    lag = 0.0
    for _ in range(5):
        lag = smoothed(lag, 40 * MS, EVERY_NS)
    assert 30 * MS < lag < 40 * MS
    for _ in range(10):
        lag = smoothed(lag, 0, EVERY_NS)
    assert lag < 1 * MS


def test_the_lag_of_a_loop_is_told() -> None:
    loop = VirtualLoop()
    told: list[float] = []
    looks: list[int] = []

    def tell(lag_ns: float, next_ns: int) -> None:
        told.append(lag_ns)
        looks.append(next_ns)

    meter = LoopLag(loop, loop.now_ns, tell)

    async def live() -> None:
        meter.start()
        await asyncio.sleep(0.1)
        assert told and max(told) < MS
        assert looks[-1] == pytest.approx(loop.now_ns() + EVERY_NS, abs=EVERY_NS)
        loop.jump(0.3)
        await asyncio.sleep(0.001)
        assert told[-1] == pytest.approx(300 * MS, rel=0.1)
        await asyncio.sleep(0.5)
        assert told[-1] < 5 * MS
        meter.stop()
        meter.stop()
        assert (told[-1], looks[-1]) == (0.0, 0)
        seen = len(told)
        await asyncio.sleep(0.1)
        assert len(told) == seen

    try:
        loop.run_until_complete(live())
    finally:
        loop.close()
