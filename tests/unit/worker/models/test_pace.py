"""When an 8-bit variant is worth serving."""

from __future__ import annotations

from typing import Any

import pytest

from worker.models.pace import refusal, relative_time
from worker.models.statistics import accuracy_evidence


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
    ratio = relative_time(Takes(clock, 30), Takes(clock, 40), lambda: clock[0])
    assert ratio == pytest.approx(0.75)


def test_slow_and_inaccurate_variants_are_refused_with_the_numbers() -> None:
    base = accuracy_evidence("p", 900, 1000)
    assert refusal(0.8, accuracy_evidence("p", 895, 1000), base) == ""
    assert "takes 0.97" in refusal(0.97, base, base)
    assert "loses 0.0200" in refusal(0.8, accuracy_evidence("p", 880, 1000), base)
