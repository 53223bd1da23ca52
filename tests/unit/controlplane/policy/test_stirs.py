"""A newcomer that is said to change nothing gets nothing, whatever came before it."""

from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.policy.hands import Flight
from controlplane.policy.profiles import VariantTable
from controlplane.policy.records import Request
from controlplane.policy.scheduler import Scheduler
from tests.unit.controlplane.policy.world import MS, candidate, request, scheduler

SHORT = VariantTable.build([candidate("short", 0.9, 0.2, fixed_share=0.9)])
LONG = VariantTable.build([candidate("best", 0.9, 6.0), candidate("fast", 0.8, 2.0)])

EVENTS = st.lists(
    st.tuples(
        st.sampled_from(("arrive", "arrive", "finish", "leave")),
        st.integers(0, 700),
        st.integers(1, 40),
    ),
    max_size=60,
)


def drain(made: Scheduler, now_ns: int, flights: list[Flight]) -> None:
    while (step := made.next_step(now_ns)) is not None:
        if isinstance(step, Flight):
            flights.append(step)


@settings(max_examples=300, deadline=None)
@given(
    table=st.sampled_from((SHORT, LONG)),
    workers=st.integers(1, 3),
    prefetch=st.integers(0, 2),
    max_batch=st.integers(1, 4),
    trip_ms=st.sampled_from((0.0, 0.1, 1.0)),
    events=EVENTS,
)
def test_who_stirs_nothing_leaves_nothing_to_do(
    table: VariantTable,
    workers: int,
    prefetch: int,
    max_batch: int,
    trip_ms: float,
    events: list[tuple[str, int, int]],
) -> None:
    made = scheduler(workers, table=table, prefetch=prefetch, max_batch=max_batch)
    made.assume_trip(trip_ms * MS)
    now = 0
    flights: list[Flight] = []
    waiting: list[Request] = []
    for kind, after_us, deadline_ms in events:
        then = now + after_us * 1000
        # The shell's timer goes off at each wake-up that falls due on the way.
        while (wake := made.wake_ns()) is not None and wake <= then:
            now = max(now, wake)
            drain(made, now, flights)
        now = then
        if kind == "arrive":
            newcomer = request(deadline_ms, at_ms=now / MS, table=table)
            if not made.offer(newcomer, now).admitted:
                continue
            waiting.append(newcomer)
            if not made.stirs(newcomer):
                assert made.next_step(now) is None
                continue
        elif kind == "finish" and flights:
            done = flights.pop(0)
            made.finished(done.worker, done.id, now, run_ns=done.nominal_ns)
        elif kind == "leave" and waiting:
            made.withdraw(waiting.pop(0), now)
            continue
        drain(made, now, flights)
