"""The scheduler with tenants: forecasts, charges, several models, terms that change."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.policy.admission import Bounds, Refusal
from controlplane.policy.entries import Settings
from controlplane.policy.hands import Flight
from controlplane.policy.policies import build
from controlplane.policy.profiles import VariantTable
from controlplane.policy.records import Request, RequestClass
from controlplane.policy.scheduler import Scheduler, Shed
from controlplane.policy.tenancy.accounts import Account
from controlplane.policy.tenancy.tenancy import Tenancy
from controlplane.tenants import PrivacyConfig, TenantConfig, TenantsConfig
from tests.unit.controlplane.policy.world import FAST, MODEL, MS, candidate, request

ONLY = VariantTable.build([FAST])
EQUAL = TenantsConfig(
    named={"a": TenantConfig(cpu_ms_per_s=500), "b": TenantConfig(cpu_ms_per_s=500)}, bound_ms=0.0
)


def made_for(
    config: TenantsConfig, *, table: VariantTable = ONLY, models: tuple[str, ...] = (MODEL,),
    workers: int = 1, max_batch: int = 1,
) -> Scheduler:  # fmt: skip
    made = Scheduler(
        build("orchid", confidence_z=1.645, reserve=0.35),
        Settings(Bounds(100, 10_000 * MS), max_batch=max_batch, prefetch=0),
        Tenancy(config),
    )
    for model in models:
        made.set_pool(model, table)
    ready = {model: frozenset(table.numbers) for model in models}
    for number in range(1, workers + 1):
        made.set_worker(number, ready, 0)
    made.assume_trip(0)
    return made


def asked(tenant: str, deadline_ms: float, *, at_ms: float = 0.0, model: str = MODEL) -> Request:
    klass = RequestClass(tenant=tenant)
    return request(deadline_ms, at_ms=at_ms, klass=klass, table=ONLY, model=model)


def account(made: Scheduler, tenant: str) -> Account:
    assert made.tenancy is not None
    return made.tenancy.account(tenant)


def run_next(made: Scheduler, at_ms: float) -> Request:
    step = made.next_step(int(at_ms * MS))
    assert isinstance(step, Flight)
    made.finished(step.worker, step.id, int((at_ms + 4) * MS), run_ns=4 * MS)
    assert made.violations(int((at_ms + 4) * MS)) == []
    return step.requests[0]


def test_a_flood_does_not_stand_before_another_tenants_request() -> None:
    made = made_for(EQUAL)
    flood = [made.offer(asked("a", 100), 0) for _ in range(40)]
    assert flood[0].admitted
    assert flood[-1].reason == Refusal.BEHIND_WORK
    # By deadline most of the flood is before it, by virtual time one request.
    late = asked("b", 100)
    assert made.offer(late, 0).admitted
    assert late in [run_next(made, 4.0 * turn) for turn in range(2)]


def test_a_lost_workers_runs_are_charged_to_nobody() -> None:
    made = made_for(EQUAL, workers=2)
    assert made.offer(asked("a", 100), 0).admitted
    flight = made.next_step(0)
    assert isinstance(flight, Flight)
    assert account(made, "a").in_flight_ns == flight.predicted_ns > 0
    assert made.remove_worker(flight.worker) == (flight,)
    assert account(made, "a").in_flight_ns == account(made, "a").charged_ns == 0
    assert account(made, "a").clock.time == 0.0
    assert made.requeue(flight.requests[0], flight)
    assert run_next(made, 1) is flight.requests[0]


def test_cpu_time_is_charged_where_the_worker_says_it() -> None:
    made = made_for(EQUAL)
    made.offer(asked("a", 100), 0)
    flight = made.next_step(0)
    assert isinstance(flight, Flight)
    made.finished(flight.worker, flight.id, 5 * MS, run_ns=5 * MS, cpu_ns=3 * MS)
    assert account(made, "a").charged_ns == 3 * MS


def test_work_adds_up_over_models() -> None:
    made = made_for(EQUAL, models=("m", "n"))
    for _ in range(4):
        assert made.offer(asked("a", 90, model="m"), 0).admitted
        assert made.offer(asked("b", 100, model="n"), 0).admitted
    order = [run_next(made, 4.0 * turn).klass.tenant for turn in range(8)]
    # By deadline alone all of a's would go first.
    assert order == ["a", "b"] * 4


def test_what_waits_is_taken_into_new_terms() -> None:
    made = made_for(EQUAL)
    waiting = [asked(tenant, 100) for tenant in "aabb"]
    assert all(made.offer(each, 0).admitted for each in waiting)
    flight = made.next_step(0)
    assert isinstance(flight, Flight) and made.tenancy is not None
    terms = TenantsConfig(named={"b": TenantConfig(cpu_ms_per_s=900)}, bound_ms=0.0)
    made.set_tenancy(made.tenancy.carried(terms))
    assert made.violations(0) == []
    assert (account(made, "a").name, account(made, "a").clock.waiting) == ("", 1)
    made.set_tenancy(None)
    assert made.violations(0) == []
    made.finished(flight.worker, flight.id, 4 * MS, run_ns=4 * MS)
    made.set_tenancy(Tenancy(EQUAL))
    done = [flight.requests[0], *(run_next(made, 4.0 * turn) for turn in range(1, 4))]
    assert {each.id for each in done} == {each.id for each in waiting}
    assert account(made, "b").charged_ns == 2 * 4 * MS


def test_cells_do_not_share_a_run_and_the_price_is_kept() -> None:
    table = VariantTable.build([candidate("fast", 0.8, 4.0, fixed_share=0.9)])
    config = TenantsConfig(
        named={"a": TenantConfig(privacy="sealed"), "b": TenantConfig()},
        privacy={"sealed": PrivacyConfig()},
        bound_ms=0.0,
    )
    made = made_for(config, table=table, max_batch=8)
    assert made.tenancy is not None
    for tenant in "aabb":
        klass = RequestClass(tenant=tenant)
        each = request(500, klass=klass, table=table)
        each.cell = made.tenancy.cell(klass, each.id)
        assert made.offer(each, 0).admitted
    runs = []
    for turn in range(2):
        flight = made.next_step(10 * turn * MS)
        assert isinstance(flight, Flight)
        runs.append("".join(each.klass.tenant for each in flight.requests))
        made.finished(flight.worker, flight.id, (10 * turn + 5) * MS, run_ns=5 * MS)
    assert sorted(runs) == ["aa", "bb"]
    assert account(made, "a").apart_ns == int(3.6 * MS)
    assert account(made, "b").apart_ns == 0


actions = st.lists(
    st.tuples(
        st.sampled_from(["offer", "offer", "next", "end", "cut", "lose", "withdraw", "terms"]),
        st.sampled_from(["a", "b", "stranger"]),
        st.integers(5, 200),
    ),
    max_size=60,
)


@settings(max_examples=60, deadline=None)
@given(actions)
def test_everything_adds_up_whatever_happens(steps: list[tuple[str, str, int]]) -> None:
    made = made_for(EQUAL, models=("m", "n"), workers=2, max_batch=4)
    flights: list[Flight] = []
    queued: dict[int, Request] = {}
    numbers = itertools.count(3)
    for now, (what, tenant, value) in enumerate(steps):
        at = now * MS
        if what == "offer":
            each = asked(tenant, value, at_ms=now, model="mn"[value % 2])
            if made.offer(each, at).admitted:
                queued[each.id] = each
        elif what == "next":
            step = made.next_step(at)
            if isinstance(step, Flight):
                flights.append(step)
                for each in step.requests:
                    del queued[each.id]
            elif isinstance(step, Shed):
                del queued[step.request.id]
        elif what in ("end", "cut") and flights:
            flight = flights.pop(value % len(flights))
            made.finished(flight.worker, flight.id, at, run_ns=value * MS, whole=what == "end")
        elif what == "lose" and flights:
            lost = made.remove_worker(flights[0].worker)
            flights = [flight for flight in flights if flight not in lost]
            ready = {model: frozenset(ONLY.numbers) for model in ("m", "n")}
            made.set_worker(next(numbers), ready, at)
        elif what == "withdraw" and queued:
            each = queued.pop(sorted(queued)[value % len(queued)])
            assert made.withdraw(each, at)
        elif what == "terms" and made.tenancy is not None:
            share = TenantConfig(cpu_ms_per_s=value, classes={"x": 1})
            made.set_tenancy(made.tenancy.carried(TenantsConfig(named={"a": share})))
        assert made.violations(at) == []
    for each in list(queued.values()):
        assert made.withdraw(each, 0)
    for flight in flights:
        made.finished(flight.worker, flight.id, 0)
    assert made.violations(0) == []
    assert made.tenancy is not None
    assert all(a.in_flight_ns == 0 for a in made.tenancy.accounts.values())
