"""Who gets a second run first."""

from __future__ import annotations

from controlplane.policy.records import Request
from controlplane.policy.second_line import SecondLine
from controlplane.policy.selector import Stage
from tests.unit.controlplane.policy.world import MS, request

BOTH = (0, 1)


def asks(line: SecondLine, stage: Stage, nominal_ms: tuple[int, int]) -> Request:
    made = request(90.0)
    made.eligible, made.stage = BOTH, stage
    assert line.push(made, [ms * MS for ms in nominal_ms])
    return made


def order(line: SecondLine) -> list[int]:
    found = []
    while (head := line.head()) is not None:
        found.append(head.request.id)
        assert line.remove(head.request.id)
    return found


def test_most_gain_for_its_time_comes_first_and_comparisons_last() -> None:
    line = SecondLine(8)
    shadow = asks(line, Stage({0: 0.3}, shadow=True), (10, 10))
    long = asks(line, Stage({0: 0.2}), (40, 10))
    short = asks(line, Stage({0: 0.1}), (10, 10))
    # Its second variant gains most for its time, though less than the first.
    other = asks(line, Stage({0: 0.2, 1: 0.15}), (40, 10))
    same = asks(line, Stage({0: 0.1}), (10, 10))
    assert order(line) == [each.id for each in (other, short, same, long, shadow)]


def test_a_full_line_takes_nobody() -> None:
    line = SecondLine(1)
    asks(line, Stage({0: 0.2}), (10, 10))
    late = request(90.0)
    late.eligible, late.stage = BOTH, Stage({0: 0.3})
    assert not line.push(late, [10 * MS, 10 * MS])
    assert len(line) == 1
