"""What a flood moved is told from what the steady tenant saw in each phase."""

from __future__ import annotations

import numpy as np
import pytest

from bench.isolation.seen import ALONE, FLOOD, SHARE, Seen, figures, summarise

_MS = 1_000_000
_DEADLINE = 100 * _MS


def _seen(due_ms: int, took_ms: int, *, on_time: bool = True) -> Seen:
    return Seen(
        due_ns=due_ms * _MS,
        over_ns=(due_ms + took_ms) * _MS,
        on_time=on_time,
        refused=not on_time,
        times_ms={"answer_ms": float(took_ms)} if on_time else {},
        quality=0.9 if on_time else float("nan"),
    )


def test_shares_are_of_the_offered_and_latencies_of_answers() -> None:
    rounds = [[_seen(0, 10), _seen(200, 30)], [_seen(0, 20), _seen(150, 50, on_time=False)]]
    found = figures(rounds, _DEADLINE)
    assert (found.offered, found.on_time, found.refused) == (4, 0.75, 0.25)
    assert found.p50_ms == {"answer_ms": 20.0}
    assert found.quality == pytest.approx(0.9)


def test_what_was_lent_is_back_when_the_first_requests_are_on_time() -> None:
    late = [_seen(0, 90, on_time=False), _seen(50, 40), _seen(120, 10)]
    found = figures([[_seen(10, 15)], late], _DEADLINE)
    # Of three that came within a deadline of a beginning two were on time.
    assert found.returned == pytest.approx(2 / 3)
    # The second round heard its first answer in time 90 ms after it had begun.
    assert found.return_ms == 90.0


def _summary(*phases: list[list[Seen]]) -> dict[str, float]:
    played = dict(zip((ALONE, SHARE, FLOOD), phases, strict=True))
    return summarise(played, _DEADLINE, np.random.default_rng(1))


def test_the_flood_is_held_against_both_phases_before_it() -> None:
    alone = [[_seen(0, 10), _seen(1, 10)]]
    share = [[_seen(0, 20), _seen(1, 20)]]
    flood = [[_seen(0, 22), _seen(1, 22, on_time=False)]]
    summary = _summary(alone, share, flood)
    assert summary["on_time_moved"] == 0.5
    assert summary["answer_ms_p99_ratio"] == pytest.approx(2.2)
    assert summary["answer_ms_p99_ratio_of_share"] == pytest.approx(1.1)
    assert summary["flood.offered"] == 2
    assert summary["flood.answer_ms_count"] == 1
    assert summary["returned"] == 0.5
    # One round says nothing of how sure that is.
    assert "answer_ms_p99_ratio_low" not in summary


@pytest.mark.parametrize(
    ("took_ms", "late", "held"), [(21, 0, 1.0), (23, 0, 0.0), (21, 1, 0.0), (10, 0, 1.0)]
)
def test_the_bar_is_against_the_other_one_at_its_share(
    took_ms: int, late: int, held: float
) -> None:
    alone = [[_seen(number, 10) for number in range(20)]] * 2
    share = [[_seen(number, 20) for number in range(20)]] * 2
    flood = [[_seen(number, took_ms, on_time=number >= late) for number in range(20)]] * 2
    assert _summary(alone, share, flood)["held"] == held


def test_a_flood_that_nobody_was_answered_beside_holds_nothing() -> None:
    good = [[_seen(0, 10)]]
    assert _summary(good, good, [[_seen(0, 10, on_time=False)]])["held"] == 0.0
    assert _summary([[_seen(0, 10, on_time=False)]], good, good)["held"] == 1.0


def test_ratios_have_intervals_of_both_baselines() -> None:
    base = [[_seen(number, 10 + 3 * number) for number in range(10)] for _ in range(6)]
    flood = [[_seen(number, 20 + take) for number in range(10)] for take in range(6)]
    summary = _summary(base, base, flood)
    for suffix in ("", "_of_share"):
        key = f"answer_ms_p99_ratio{suffix}"
        assert summary[f"{key}_low"] < summary[key] <= summary[f"{key}_high"]


def test_a_phase_without_answers_has_no_latencies() -> None:
    none = [[_seen(0, 10, on_time=False)]]
    summary = _summary(none, none, none)
    assert "answer_ms_p99_ratio" not in summary
    assert summary["return_ms"] == 0.0
    assert summary["held"] == 0.0
