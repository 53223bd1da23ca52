"""Workers and pools together: late binding, prefetching, membership, exact sums."""

from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.policy.hands import Flight
from controlplane.policy.profiles import VariantTable
from controlplane.policy.records import Request, RequestClass
from controlplane.policy.scheduler import Scheduler, Shed
from controlplane.policy.selector import Reason
from tests.unit.controlplane.policy.world import (
    BEST,
    FAST,
    MODEL,
    MS,
    TABLE,
    candidate,
    request,
    scheduler,
)


def admit(made: Scheduler, *requests: Request) -> None:
    for each in requests:
        assert made.offer(each, each.arrived_ns).admitted


def step(made: Scheduler, at_ms: float) -> Flight:
    found = made.next_step(int(at_ms * MS))
    assert isinstance(found, Flight)
    return found


def end(made: Scheduler, flight: Flight, at_ms: float, run_ms: float | None = None) -> None:
    run_ns = flight.nominal_ns if run_ms is None else int(run_ms * MS)
    assert made.finished(flight.worker, flight.id, int(at_ms * MS), run_ns=run_ns) is flight


def clean(made: Scheduler) -> bool:
    return (
        made.queued == made.in_flight == made.runs == 0
        and all(pool.line.work.total == 0 for pool in made.pools.values())
        and all(len(pool.busy) == 0 for pool in made.pools.values())
        and all(pool.busy.residual_ns(0) == 0 for pool in made.pools.values())
    )


def test_a_lone_request_gets_the_most_accurate_variant() -> None:
    made = scheduler()
    admit(made, request(40))
    flight = step(made, 0)
    assert flight.candidate.name == "best"
    assert flight.decision.reason == Reason.MOST_ACCURATE
    end(made, flight, 10)
    assert clean(made)


def test_the_variant_is_chosen_when_a_worker_frees_not_before() -> None:
    made = scheduler(prefetch=0)
    admit(made, request(40), request(60))
    first = step(made, 0)
    assert made.next_step(0) is None
    admit(made, *(request(60) for _ in range(6)))
    end(made, first, 10)
    assert step(made, 10).candidate.name == "fast"


def test_the_earliest_deadline_goes_first() -> None:
    made = scheduler(prefetch=0)
    admit(made, request(300), request(100), request(200))
    order = []
    for turn in range(3):
        flight = step(made, turn * 10)
        order.append(flight.requests[0].deadline_ns // MS)
        end(made, flight, turn * 10 + 10)
    assert order == [100, 200, 300]


def test_a_comparison_policy_keeps_arrival_order_and_its_variant() -> None:
    made = scheduler(policy="cheap", prefetch=0)
    late, soon = request(300), request(100)
    admit(made, late, soon)
    flight = step(made, 0)
    assert flight.requests == (late,)
    assert flight.candidate.name == "fast"
    assert flight.approximations == (True,)


def test_honest_accurate_refuses_what_the_work_ahead_makes_late() -> None:
    made = scheduler(policy="accurate", prefetch=0)
    admit(made, request(25), request(25))
    refused = made.offer(request(25), 0)
    assert not refused.admitted
    assert refused.retry_after_ms == 5
    assert step(made, 0).candidate.name == "best"


def test_a_worker_gets_its_next_run_shortly_before_it_frees() -> None:
    made = scheduler(prefetch=1)
    admit(made, request(60), request(60))
    first = step(made, 0)
    assert made.next_step(0) is None
    wake = made.wake_ns()
    assert wake is not None
    assert 9 * MS < wake < 10 * MS
    second = step(made, wake / MS)
    assert second.started_ns == -1
    end(made, first, 10)
    assert second.started_ns == 10 * MS
    end(made, second, 20)
    assert clean(made)


def test_short_runs_that_pay_to_share_gather_until_their_worker_is_free() -> None:
    table = VariantTable.build([candidate("best", 0.9, 0.1, fixed_share=0.8)])
    made = scheduler(table=table, max_batch=4)
    made.assume_trip(MS)
    admit(made, request(60, table=table))
    first = step(made, 0)
    admit(made, request(60, table=table), request(60, table=table))
    assert made.next_step(0) is None
    end(made, first, 1)
    assert len(step(made, 1).requests) == 2
    admit(made, *(request(60, table=table) for _ in range(4)))
    assert len(step(made, 1).requests) == 4


def test_a_run_that_was_cut_short_never_makes_its_variant_look_faster() -> None:
    made = scheduler()
    pool = made.pools[MODEL]
    for cut_ms, learns in ((3.0, False), (15.0, True)):
        admit(made, request(100.0))
        flight = step(made, 0.0)
        before = pool.foresight.corrections.factors[flight.decision.variant]
        made.finished(flight.worker, flight.id, MS, run_ns=int(cut_ms * MS), whole=False)
        after = pool.foresight.corrections.factors[flight.decision.variant]
        assert (after > before) if learns else (after == before)


def test_no_wake_is_asked_for_while_nothing_waits() -> None:
    made = scheduler()
    admit(made, request(60))
    step(made, 0)
    assert made.wake_ns() is None


def test_a_worker_that_joins_is_used_at_once() -> None:
    made = scheduler(prefetch=0)
    admit(made, request(60), request(60))
    step(made, 0)
    assert made.next_step(0) is None
    made.set_worker(2, {MODEL: frozenset(TABLE.numbers)}, 0)
    assert step(made, 0).worker == 2


def test_a_lost_worker_gives_back_what_it_held() -> None:
    made = scheduler(workers=2)
    first = request(60)
    admit(made, first)
    flight = step(made, 0)
    assert made.remove_worker(flight.worker) == (flight,)
    assert made.requeue(first, flight)
    again = step(made, 1)
    assert again.worker != flight.worker
    assert again.requests == (first,)
    assert made.finished(flight.worker, flight.id, 2 * MS) is None
    end(made, again, 11)
    assert clean(made)


def test_a_distrusted_worker_gets_nothing_and_counts_for_nothing() -> None:
    made = scheduler(workers=2, prefetch=0)
    admit(made, request(60))
    flight = step(made, 0)
    made.trust(flight.worker, False, 0)
    pool = made.pools[MODEL]
    assert pool.live == 1
    assert pool.busy.residual_ns(0) == 0
    admit(made, request(60), request(60))
    assert step(made, 0).worker != flight.worker
    assert made.next_step(0) is None
    made.trust(flight.worker, True, 5 * MS)
    assert pool.live == 2
    end(made, flight, 10)
    assert step(made, 10).worker == flight.worker


def test_a_worker_without_the_needed_variant_leaves_the_request_to_others() -> None:
    made = scheduler(prefetch=0)
    made.set_worker(1, {MODEL: frozenset({"fast"})}, 0)
    made.set_worker(2, {MODEL: frozenset({"best"})}, 0)
    pinned, free = request(60, klass=RequestClass(variant="best")), request(90)
    admit(made, pinned, free)
    by_worker = {flight.worker: flight for flight in (step(made, 0), step(made, 0))}
    assert by_worker[2].requests == (pinned,)
    assert by_worker[1].requests == (free,)
    assert by_worker[1].candidate.name == "fast"
    assert by_worker[1].approximations == (True,)


def test_a_request_that_one_worker_is_too_slow_for_is_left_to_another() -> None:
    made = scheduler(prefetch=0)
    made.set_worker(1, {MODEL: frozenset({"best"})}, 0)
    made.set_worker(2, {MODEL: frozenset({"fast"})}, 0)
    busy, tight, patient = request(8), request(9), request(90)
    admit(made, busy)
    first = step(made, 0)
    assert (first.worker, first.candidate.name) == (2, "fast")
    admit(made, tight, patient)
    second = step(made, 0)
    assert (second.worker, second.requests) == (1, (patient,))
    end(made, first, 4)
    assert step(made, 4).requests == (tight,)


def test_expired_heads_are_shed_and_the_rest_runs() -> None:
    """Case 4: what has expired is answered, not run first."""
    made = scheduler(prefetch=0)
    dead, alive = request(20), request(100)
    admit(made, dead, alive)
    shed = made.next_step(30 * MS)
    assert isinstance(shed, Shed)
    assert (shed.request, shed.decision.reason) == (dead, Reason.EXPIRED)
    assert step(made, 30).requests == (alive,)


def test_a_shared_run_carries_its_members_and_their_own_approximations() -> None:
    table = VariantTable.build(
        [candidate("best", 0.9, 10.0, fixed_share=0.8), candidate("fast", 0.8, 4.0)]
    )
    made = scheduler(table=table, max_batch=8, prefetch=0)
    admit(made, *(request(200, table=table) for _ in range(3)))
    flight = step(made, 0)
    assert len(flight.requests) == 3
    assert flight.nominal_ns == 14 * MS
    assert flight.decision.batch == 3
    end(made, flight, 14)
    assert clean(made)


def test_idle_workers_share_the_queue_instead_of_one_taking_all() -> None:
    table = VariantTable.build([candidate("best", 0.9, 10.0, fixed_share=0.8)])
    made = scheduler(workers=2, table=table, max_batch=8, prefetch=0)
    admit(made, *(request(200, table=table) for _ in range(4)))
    flights = (step(made, 0), step(made, 0))
    assert [len(flight.requests) for flight in flights] == [2, 2]
    assert {flight.worker for flight in flights} == {1, 2}


def test_pools_that_share_a_worker_take_turns_by_deadline() -> None:
    made = scheduler(prefetch=0)
    made.set_pool("other", TABLE)
    every = frozenset(TABLE.numbers)
    made.set_worker(1, {MODEL: every, "other": every}, 0)
    admit(made, request(100), request(22, model="other"))
    first = step(made, 0)
    assert first.pool.model == "other"
    assert first.candidate.name == "fast", "the other queue's work stands in the reserve too"
    assert made.next_step(0) is None
    end(made, first, 4)
    assert step(made, 4).pool.model == MODEL


def test_a_new_table_keeps_the_queue_and_says_whom_it_cannot_serve() -> None:
    made = scheduler(prefetch=0)
    pinned, free = request(100, klass=RequestClass(variant="fast")), request(100)
    admit(made, pinned, free)
    table = VariantTable.build([BEST])
    assert [orphan for orphan, _ in made.set_pool(MODEL, table)] == [pinned]
    made.set_worker(1, {MODEL: frozenset({"best"})}, 0)
    flight = step(made, 0)
    assert (flight.requests, flight.candidate.name) == ((free,), "best")
    end(made, flight, 10)
    assert clean(made)


def test_corrections_survive_a_new_table() -> None:
    made = scheduler(prefetch=0)
    for turn in range(20):
        admit(made, request(100, at_ms=turn * 30))
        end(made, step(made, turn * 30), turn * 30 + 20, run_ms=20)
    learnt = made.pools[MODEL].foresight.corrections.factors[TABLE.numbers["best"]]
    assert learnt > 1.8
    made.set_pool(MODEL, VariantTable.build([FAST, BEST, candidate("more", 0.95, 30.0)]))
    pool = made.pools[MODEL]
    assert pool.foresight.corrections.factors[pool.table.numbers["best"]] == learnt


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("arrive"), st.integers(1, 120)),
        st.tuples(st.just("cancel"), st.integers(0, 50)),
        st.tuples(st.just("finish"), st.integers(0, 3)),
        st.tuples(st.just("lose"), st.integers(1, 3)),
        st.tuples(st.just("join"), st.integers(1, 3)),
        st.tuples(st.just("distrust"), st.integers(1, 3)),
        st.tuples(st.just("trust"), st.integers(1, 3)),
        st.tuples(st.just("wait"), st.integers(0, 40)),
    ),
    max_size=120,
)


@settings(max_examples=150, deadline=None)
@given(EVENTS)
def test_nothing_is_lost_or_counted_twice(events: list[tuple[str, int]]) -> None:
    """Every admitted request is queued, held, shed, cancelled or finished, and sums agree."""
    table = VariantTable.build([candidate("best", 0.9, 10.0, fixed_share=0.3), FAST])
    made = scheduler(workers=2, table=table, prefetch=2, max_batch=4, max_items=20)
    every = frozenset(table.numbers)
    queued: dict[int, Request] = {}
    flights: dict[int, Flight] = {}
    now = 0

    def drain() -> None:
        while (found := made.next_step(now)) is not None:
            if isinstance(found, Shed):
                del queued[found.request.id]
            else:
                flights[found.id] = found
                for each in found.requests:
                    del queued[each.id]

    for kind, value in events:
        if kind == "arrive":
            newcomer = request(value, at_ms=now / MS, table=table)
            if made.offer(newcomer, now).admitted:
                queued[newcomer.id] = newcomer
        elif kind == "cancel" and queued:
            victim = queued[sorted(queued)[value % len(queued)]]
            assert made.withdraw(victim, now)
            assert not made.withdraw(victim, now)
            del queued[victim.id]
        elif kind == "finish" and flights:
            flight = flights.pop(sorted(flights)[value % len(flights)])
            assert made.finished(flight.worker, flight.id, now, run_ns=flight.nominal_ns)
        elif kind == "lose":
            for flight in made.remove_worker(value):
                del flights[flight.id]
                for each in flight.requests:
                    if made.requeue(each, flight):
                        queued[each.id] = each
        elif kind == "join":
            made.set_worker(value, {MODEL: every}, now)
        elif kind in ("distrust", "trust"):
            made.trust(value, kind == "trust", now)
        elif kind == "wait":
            now += value * MS
        drain()
        assert made.violations(now) == []
        pool = made.pools[MODEL]
        assert made.queued == len(queued) <= 20
        assert made.in_flight == sum(len(f.requests) for f in flights.values())
        assert made.runs == len(flights)
        if not pool.live:
            assert pool.busy.residual_ns(now) == 0
    for number in (1, 2, 3):
        made.remove_worker(number)
    for each in queued.values():
        assert made.withdraw(each, now)
    assert clean(made)
