"""The sixth rung against a control plane that has more to do than it can: the admitted are on time.

See `play_protected`.
"""

from __future__ import annotations

import pytest

from bench.sim.ladder import LOOP_PER_S, most_moves, play_protected
from controlplane.policy.ladder import Rung

SECONDS = 10.0


def test_within_its_means_the_control_plane_lets_everybody_in() -> None:
    played = play_protected(1000.0, protects=True, seconds=SECONDS)
    assert (played.refused, played.ladder.rung) == (0, Rung.NORMAL)
    assert played.on_time == played.admitted


@pytest.mark.parametrize("factor", [1.2, 2.0, 2.5, 3.0])
@pytest.mark.parametrize("seed", [1, 2])
def test_beyond_them_those_it_lets_in_are_on_time(factor: float, seed: int) -> None:
    per_s = factor * LOOP_PER_S
    without = play_protected(per_s, protects=False, seconds=SECONDS, seed=seed)
    assert without.on_time < 0.2 * without.admitted
    played = play_protected(per_s, protects=True, seconds=SECONDS, seed=seed)
    assert played.ladder.protected == played.refused > 0
    assert played.on_time >= 0.98 * played.admitted
    # More are answered in time than by letting everybody in.
    assert played.on_time > 2 * without.on_time
    assert played.ladder.changes <= most_moves(SECONDS, len(Rung))
