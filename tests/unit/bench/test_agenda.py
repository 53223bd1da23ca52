"""What happens in a simulated world happens in its order, and the alarm once."""

from __future__ import annotations

from bench.sim.agenda import Agenda


def played(agenda: Agenda) -> list[int]:
    """The times of everything that is left."""
    times: list[int] = []
    while agenda:
        following = agenda.next_ns
        times.append(agenda.step())
        assert times[-1] == following
    return times


def test_events_of_one_moment_happen_as_they_were_foreseen() -> None:
    agenda = Agenda()
    told: list[tuple[int, str]] = []
    for name, time_ns in (("late", 9), ("first", 5), ("second", 5), ("early", 1)):
        agenda.at(time_ns, lambda now, name=name: told.append((now, name)))  # type: ignore[misc]
    assert played(agenda) == [1, 5, 5, 9]
    assert told == [(1, "early"), (5, "first"), (5, "second"), (9, "late")]


def test_an_event_may_foresee_others_of_its_moment() -> None:
    agenda = Agenda()
    told: list[int] = []

    def happen(now: int) -> None:
        told.append(now)
        if len(told) < 3:
            agenda.at(now, happen)

    agenda.at(4, happen)
    assert played(agenda) == told == [4, 4, 4]


def test_the_alarm_rings_once_for_the_earliest() -> None:
    agenda = Agenda()
    rung: list[int] = []
    agenda.wake(8, 8, rung.append)
    agenda.wake(9, 9, rung.append)
    agenda.wake(5, 6, rung.append)
    # What was replaced is over without a sound.
    assert played(agenda) == [6, 8] and rung == [6]
    agenda.wake(20, 20, rung.append)
    played(agenda)
    assert rung == [6, 20]
