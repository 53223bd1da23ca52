"""The overload ladder: up a rung at a time, down with hysteresis, and what each rung keeps out."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.policy.admission import Admission, Load, Refusal
from controlplane.policy.hands import Flight
from controlplane.policy.ladder import FALL_NS, RISE_NS, Ladder, Rung, Trigger
from controlplane.policy.records import RequestClass
from controlplane.policy.scheduler import Scheduler
from tests.unit.controlplane.policy.world import MODEL, MS, request, scheduler

DEADLINE = 100 * MS


def load(crowding: float, workers: int = 2, queued: int = 5) -> Load:
    return Load(0.0, crowding * DEADLINE * workers, queued, workers, 0)


LET_IN = Admission(True, "", (0,), 1.0, 0)
SENT_AWAY = Admission(False, Refusal.BEHIND_WORK, (), 1.0, 1)


def hold(ladder: Ladder, crowding: float, now: int, for_ns: int, refused: int = 0) -> int:
    """Ten newcomers every 10 ms that find this; returns when the last ones came."""
    end = now + for_ns
    while now < end:
        now += 10 * MS
        for place in range(10):
            ladder.newcomer(False, load(crowding), DEADLINE, now)
            ladder.answered(SENT_AWAY if place < refused else LET_IN)
    return now


def test_crowding_lifts_to_deferring_and_no_further() -> None:
    ladder = Ladder()
    now = hold(ladder, 0.15, 0, FALL_NS)
    assert (ladder.rung, ladder.trigger, ladder.changes) == (Rung.NORMAL, Trigger.NONE, 0)
    now = hold(ladder, 0.3, now, 10 * RISE_NS)
    assert (ladder.rung, ladder.trigger) == (Rung.PLAIN, Trigger.CROWDED)
    now = hold(ladder, 0.5, now, 10 * RISE_NS)
    assert ladder.rung == Rung.SMALLER
    now = hold(ladder, 5.0, now, 10 * RISE_NS)
    assert (ladder.rung, ladder.changes) == (Rung.DEFER, 3)
    assert ladder.crowding == pytest.approx(5.0)


def test_refusals_lift_to_the_top_one_rung_at_a_time() -> None:
    ladder = Ladder()
    seen = [ladder.rung]
    now = 0
    for _ in range(100):
        now = hold(ladder, 0.0, now, 10 * MS, refused=5)
        if ladder.rung != seen[-1]:
            seen.append(ladder.rung)
    assert seen == [Rung.NORMAL, Rung.PLAIN, Rung.SMALLER, Rung.DEFER, Rung.REFUSE]
    assert ladder.trigger == Trigger.REFUSING


def test_what_would_be_refused_by_an_idle_pool_is_no_overload() -> None:
    ladder = Ladder()
    for number in range(100):
        ladder.newcomer(False, load(0.0), DEADLINE, number * 10 * MS)
        ladder.answered(Admission(False, Refusal.TOO_SHORT, (), 1.0, 0))
    assert ladder.rung == Rung.NORMAL


def test_down_takes_quiet_between_the_thresholds_nothing_moves() -> None:
    ladder = Ladder()
    now = hold(ladder, 0.5, 0, 10 * RISE_NS)
    # Above where it lets go of the rung, below where it asks for it.
    now = hold(ladder, 0.25, now, 3 * FALL_NS)
    assert ladder.rung == Rung.SMALLER
    now = hold(ladder, 0.05, now, FALL_NS - 20 * MS)
    assert ladder.rung == Rung.SMALLER
    now = hold(ladder, 0.05, now, 40 * MS)
    assert (ladder.rung, ladder.trigger) == (Rung.PLAIN, Trigger.CROWDED)
    hold(ladder, 0.05, now, FALL_NS + 20 * MS)
    assert (ladder.rung, ladder.trigger) == (Rung.NORMAL, Trigger.NONE)


def test_without_traffic_refusals_are_forgotten() -> None:
    ladder = Ladder()
    now = hold(ladder, 0.0, 0, 20 * RISE_NS, refused=10)
    assert ladder.rung >= Rung.REFUSE
    for _ in range(30):
        now += FALL_NS // 2
        ladder.observe(0.0, 2, now)
    assert ladder.rung == Rung.NORMAL
    assert ladder.refusing < 0.01


def test_the_deferrable_are_kept_out_with_a_time_to_come_again() -> None:
    ladder = Ladder()
    now = hold(ladder, 0.5, 0, 10 * RISE_NS)
    assert ladder.rung == Rung.SMALLER
    assert ladder.newcomer(True, load(0.5), DEADLINE, now) is None
    now = hold(ladder, 0.7, now, 10 * RISE_NS)
    assert (ladder.rung, ladder.trigger) == (Rung.DEFER, Trigger.CROWDED)
    deferred = ladder.newcomer(True, load(0.7), DEADLINE, now)
    assert deferred is not None
    assert (deferred.admitted, deferred.reason) == (False, Refusal.DEFERRED)
    assert deferred.retry_after_ms == 2000
    assert ladder.newcomer(False, load(0.7), DEADLINE, now) is None
    long = ladder.newcomer(True, load(50.0), DEADLINE, now)
    assert long is not None
    assert long.retry_after_ms == 5000
    assert ladder.kept_out == 2


@settings(max_examples=100, deadline=None)
@given(
    st.booleans(),
    st.lists(
        st.tuples(
            st.floats(0.0, 2.0), st.integers(0, 10), st.floats(0.0, 1.0), st.integers(1, 400)
        ),
        max_size=300,
    ),
)
def test_moves_are_bounded_whatever_comes(
    generates: bool,
    steps: list[tuple[float, int, float, int]],
) -> None:
    ladder = Ladder(generates=generates)
    now = 0
    for crowding, refused, lag, wait_ms in steps:
        ladder.lag_ns = lag * DEADLINE
        before = ladder.rung
        now += wait_ms * MS
        ladder.newcomer(False, load(crowding), DEADLINE, now)
        for place in range(10):
            ladder.answered(SENT_AWAY if place < refused else LET_IN)
        rungs = ladder.rungs
        assert abs(rungs.index(ladder.rung) - rungs.index(before)) <= 1
    # A way down takes its time, and every way up but those to the top was a way down before.
    assert ladder.changes <= 2 * (now // FALL_NS) + len(Rung) - 1


def test_optional_work_stops_first_and_is_counted() -> None:
    ladder = Ladder()
    assert ladder.optional_work_allowed()
    now = hold(ladder, 0.25, 0, 4 * RISE_NS)
    assert ladder.rung == Rung.PLAIN
    assert not ladder.optional_work_allowed()
    assert ladder.stopped == 1
    assert ladder.newcomer(True, load(0.25), DEADLINE, now) is None


def test_answers_are_cut_on_the_second_rung_where_that_is_declared() -> None:
    ladder = Ladder(generates=True)
    assert ladder.shortened(500, 64) == 500
    hold(ladder, 0.3, 0, 6 * RISE_NS)
    assert ladder.rung == Rung.SHORTER
    assert [ladder.shortened(asked, 64) for asked in (500, 0, 64, 8)] == [64, 64, 64, 8]
    assert ladder.shortened(500, 0) == 500
    assert ladder.cut == 2


def test_while_the_loop_lags_nobody_is_let_in() -> None:
    ladder = Ladder()
    now = hold(ladder, 0.0, 0, 2 * RISE_NS)
    ladder.lag_ns = 0.3 * DEADLINE
    now = hold(ladder, 0.0, now, 3 * RISE_NS)
    assert Rung.NORMAL < ladder.rung < Rung.PROTECT
    assert ladder.newcomer(False, load(0.0), DEADLINE, now) is None
    now = hold(ladder, 0.0, now, 10 * RISE_NS)
    assert (ladder.rung, ladder.trigger) == (Rung.PROTECT, Trigger.STRAINED)
    kept_out = ladder.newcomer(False, load(0.0), DEADLINE, now)
    assert kept_out is not None
    assert (kept_out.reason, kept_out.retry_after_ms) == (Refusal.PROTECTING, 500)
    # The level stays for a while, its effect ends with what caused it.
    ladder.lag_ns = 0.1 * DEADLINE
    assert ladder.newcomer(False, load(0.0), DEADLINE, now) is None
    assert ladder.rung == Rung.PROTECT
    assert ladder.protected > 1


def test_a_sudden_lag_is_met_at_once() -> None:
    ladder = Ladder()
    now = hold(ladder, 0.0, 0, 2 * RISE_NS)
    ladder.lag_ns = 0.6 * DEADLINE
    kept_out = ladder.newcomer(False, load(0.0), DEADLINE, now)
    assert kept_out is not None and kept_out.reason == Refusal.PROTECTING
    assert ladder.rung == Rung.NORMAL
    # What began is not over while a good part of it is left.
    ladder.lag_ns = 0.2 * DEADLINE
    assert ladder.newcomer(False, load(0.0), DEADLINE, now) is not None
    ladder.lag_ns = 0.1 * DEADLINE
    assert ladder.newcomer(False, load(0.0), DEADLINE, now) is None
    ladder.lag_ns = 0.35 * DEADLINE
    assert ladder.newcomer(False, load(0.0), DEADLINE, now) is None


def test_a_look_that_is_overdue_after_a_late_one_says_how_late_the_loop_is() -> None:
    ladder = Ladder()
    now = hold(ladder, 0.0, 0, 2 * RISE_NS)
    ladder.looked(10 * MS, now + 10 * MS)
    assert ladder.newcomer(False, load(0.0), DEADLINE, now + 30 * MS) is None
    kept_out = ladder.newcomer(False, load(0.0), DEADLINE, now + 45 * MS)
    assert kept_out is not None and kept_out.reason == Refusal.PROTECTING
    ladder.looked(0.0, now + 55 * MS)
    assert ladder.newcomer(False, load(0.0), DEADLINE, now + 50 * MS) is None


def test_a_look_that_is_overdue_alone_says_nothing() -> None:
    ladder = Ladder()
    now = hold(ladder, 0.0, 0, 2 * RISE_NS)
    # In time last time: the machine stalled once. Or nobody looks any more.
    for lag, look in ((1 * MS, now + 10 * MS), (10 * MS, 0)):
        ladder.looked(lag, look)
        assert ladder.newcomer(False, load(0.0), DEADLINE, now + 80 * MS) is None


def test_an_arena_counts_from_where_it_fills_up() -> None:
    ladder = Ladder(generates=True)
    ladder.arena = 0.8
    assert ladder.strain <= 0.0
    ladder.arena = 0.97
    assert ladder.strain == pytest.approx(1.0)
    hold(ladder, 0.0, 0, 20 * RISE_NS)
    assert ladder.rung == Rung.PROTECT


def crowded(made: Scheduler, klass: RequestClass, at_ms: int) -> Admission:
    asked = request(400, at_ms=at_ms, klass=klass)
    return made.offer(asked, at_ms * MS)


def test_a_crowded_pool_defers_the_deferrable_and_answers_the_others() -> None:
    made = scheduler(prefetch=0)
    plain, batch = RequestClass(), RequestClass(name="batch", deferrable=True)
    for at in range(0, 300, 2):
        crowded(made, plain, at)
    refused = crowded(made, batch, 302)
    assert refused.reason == Refusal.DEFERRED
    assert refused.retry_after_ms >= 2000
    ladder = made.pools[MODEL].ladder
    assert ladder.rung >= Rung.DEFER
    assert ladder.trigger != Trigger.NONE
    flight = made.next_step(302 * MS)
    assert isinstance(flight, Flight)
    assert flight.rung == ladder.rung
    assert made.violations(302 * MS) == []
