"""Who was here: workers that left are remembered, within bounds."""

from controlplane.page.roster import MOST_GONE, Roster
from controlplane.registry import WorkerIdentity, WorkerLoad, WorkerSession

S = 1_000_000_000


def session(name: str, *, draining: bool = False) -> WorkerSession:
    identity = WorkerIdentity(name, f"{name}:1", 1, "cpu", "avx2")
    return WorkerSession(1, identity, 0, load=WorkerLoad(draining=draining))


def test_a_worker_that_left_is_remembered_until_it_comes_back() -> None:
    roster = Roster()
    one, two = session("one"), session("two", draining=True)
    roster.look([one, two], 0)
    assert roster.gone() == ()
    roster.look([], 5 * S)
    lost = {gone.session.identity.id: gone for gone in roster.gone()}
    assert {name: (gone.drained, gone.gone_ns) for name, gone in lost.items()} == {
        "one": (False, 5 * S),
        "two": (True, 5 * S),
    }
    roster.look([session("one")], 6 * S)
    assert [gone.session for gone in roster.gone()] == [two]


def test_what_left_long_ago_is_forgotten_and_so_are_too_many() -> None:
    roster = Roster()
    roster.look([session("old")], 0)
    roster.look([], 1)
    roster.look([], 601 * S)
    assert roster.gone() == ()
    for number in range(3 * MOST_GONE):
        roster.look([session(f"w{number}")], 602 * S + number)
    roster.look([], 603 * S)
    left = [gone.session.identity.id for gone in roster.gone()]
    assert len(left) == MOST_GONE and left[0] == f"w{3 * MOST_GONE - 1}"
