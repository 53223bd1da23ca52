"""The sixth rung against a control plane that has more to do than it can: the admitted are on time.

The event loop is one server: it reads every call at the door, and writes an answer for each that
was let in once its worker is done. Both wait for whatever is before them.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
import pytest

from controlplane.lag import EVERY_NS, smoothed
from controlplane.policy.admission import Admission, Load
from controlplane.policy.ladder import FALL_NS, Ladder, Rung

MS = 1_000_000
DOOR_NS, ANSWER_NS, WORK_NS, DEADLINE_NS = MS // 5, MS // 2, 10 * MS, 100 * MS
SECONDS = 10.0
NOTHING_WAITS = Load(0.0, 0.0, 0, 2, 2)
LET_IN = Admission(True, "", (0,), 0.0, 0)


@dataclass(slots=True)
class Played:
    """What became of the calls."""

    ladder: Ladder
    on_time: int = 0
    admitted: int = 0
    refused: int = 0


def play(per_s: float, *, protects: bool) -> Played:
    """Poisson calls at so many a second, with or without the ladder at the door."""
    played = Played(Ladder())
    generator = np.random.default_rng(1)
    arrivals = np.cumsum(generator.exponential(1e9 / per_s, int(per_s * SECONDS))).astype(int)
    # (when it is ready, order, kind, when the call arrived): jobs in the order they became ready.
    waiting = [(int(at), number, "door", int(at)) for number, at in enumerate(arrivals)]
    waiting.append((EVERY_NS, -1, "look", EVERY_NS))
    heapq.heapify(waiting)
    order, now, looked, lag = len(waiting), 0, 0, 0.0
    while waiting:
        ready, _, kind, arrived = heapq.heappop(waiting)
        now = max(now, ready)
        order += 1
        if kind == "look":
            lag = smoothed(lag, now - ready, now - looked)
            looked = now
            played.ladder.lag_ns = lag if protects else 0.0
            if len(waiting) > 1:
                heapq.heappush(waiting, (now + EVERY_NS, order, "look", 0))
        elif kind == "door":
            now += DOOR_NS
            refused = played.ladder.newcomer(False, NOTHING_WAITS, DEADLINE_NS, now)
            played.ladder.answered(LET_IN)
            if refused is not None:
                played.refused += 1
                continue
            played.admitted += 1
            heapq.heappush(waiting, (now + WORK_NS, order, "answer", arrived))
        else:
            now += ANSWER_NS
            played.on_time += now - arrived <= DEADLINE_NS
    return played


def test_within_its_means_the_control_plane_lets_everybody_in() -> None:
    played = play(1000.0, protects=True)
    assert (played.refused, played.ladder.rung) == (0, Rung.NORMAL)
    assert played.on_time == played.admitted


@pytest.mark.parametrize("per_s", [1700.0, 2100.0])
def test_beyond_them_those_it_lets_in_are_on_time(per_s: float) -> None:
    without = play(per_s, protects=False)
    assert without.on_time < 0.2 * without.admitted
    played = play(per_s, protects=True)
    assert played.ladder.protected == played.refused > 0
    assert played.on_time >= 0.98 * played.admitted
    # More are answered in time than by letting everybody in.
    assert played.on_time > 2 * without.on_time
    assert played.ladder.changes <= 2 * (SECONDS * 1e9 // FALL_NS) + len(Rung) - 1
