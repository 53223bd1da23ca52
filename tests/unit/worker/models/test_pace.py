"""When an 8-bit variant is worth serving."""

from __future__ import annotations

from typing import Any

import pytest

from worker.models.pace import frontier, loses, relative_time, slow


class Takes:
    """A session whose run moves a hand-driven clock on."""

    def __init__(self, clock: list[int], nanoseconds: int) -> None:
        self._clock = clock
        self._nanoseconds = nanoseconds

    def run(self, feeds: dict[str, Any]) -> dict[str, Any]:
        self._clock[0] += self._nanoseconds * len(feeds["input_ids"])
        return {}


def test_the_ratio_of_times() -> None:
    clock = [0]
    pace = relative_time(Takes(clock, 30), Takes(clock, 40), lambda: clock[0])
    assert pace.ratio == pytest.approx(0.75)
    assert (pace.candidate_ns, pace.baseline_ns) == (30 * 32, 40 * 32)


def test_slow_and_inaccurate_variants_are_refused_with_the_numbers() -> None:
    assert slow(0.8) == loses(0.005) == loses(-0.1) == ""
    assert "takes 0.97" in slow(0.97)
    assert "loses 0.0200" in loses(0.02)


def test_the_frontier_leaves_out_what_a_faster_variant_all_but_equals() -> None:
    points = {
        "best": (90, 0.921),
        "hardly-worse": (60, 0.920),
        "cheap": (10, 0.84),
        "slower-and-worse": (20, 0.83),
        "equal": (10, 0.84),
    }
    assert frontier(points) == {"cheap", "hardly-worse"}
    assert frontier(points, 0.0) == {"cheap", "hardly-worse", "best"}
    assert frontier({}) == set()
