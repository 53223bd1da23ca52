"""The bound on how far apart waiting tenants may be served, over random workloads."""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.policy.records import Request, RequestClass, Shape
from controlplane.policy.tenancy.accounts import Account
from controlplane.policy.tenancy.line import FairLine
from controlplane.policy.tenancy.tenancy import Charge, Tenancy
from controlplane.tenants import TenantConfig, TenantsConfig
from tests.unit.controlplane.policy.world import MS, TABLE, TOKENIZER, request

NAMES = ("large", "middle", "small")
CONFIG = TenantsConfig(
    named={
        "large": TenantConfig(cpu_ms_per_s=1000),
        "middle": TenantConfig(cpu_ms_per_s=500, classes={"quick": 300}),
        "small": TenantConfig(cpu_ms_per_s=200),
    },
    bound_ms=7.0,
)
MOST_TOKENS = 100
# The fastest variant takes 0.4 ms a token.
LONGEST_NS = MOST_TOKENS * 0.4 * MS
IN_FLIGHT = 3

arrive = st.tuples(
    st.just("arrive"),
    st.integers(0, len(NAMES) - 1),
    st.sampled_from(["", "quick"]),
    st.integers(1, MOST_TOKENS),
    st.integers(1, 400),
)
serve = st.tuples(st.just("serve"), st.floats(0.5, 2.0))
end = st.tuples(st.just("end"), st.integers(0, IN_FLIGHT - 1))
cancel = st.tuples(st.just("cancel"), st.integers(0, 1 << 16))
steps = st.lists(st.one_of(arrive, arrive, serve, serve, end, cancel), max_size=250)


class Play:
    """A line, the runs in flight with what each will really take, and who waited since when."""

    def __init__(self) -> None:
        self.tenancy = Tenancy(CONFIG)
        self.line = FairLine(TABLE, 1000, True, self.tenancy)
        self.waiting: dict[int, Request] = {}
        self.runs: list[tuple[tuple[Charge, ...], int]] = []
        self.since: dict[tuple[str, str], float] = {}

    def arrive(self, tenant: int, klass: str, tokens: int, deadline_ms: int) -> None:
        made = request(
            deadline_ms,
            klass=RequestClass(tenant=NAMES[tenant], name=klass),
            shape=Shape.of_lengths([tokens]),
        )
        assert self.line.push(made, self.line.nominal(made), 0)
        self.waiting[made.id] = made

    def serve(self, ratio: float) -> None:
        head = self.line.head()
        if head is None:
            return
        if len(self.runs) == IN_FLIGHT:
            self.end(0)
            head = self.line.head()
            assert head is not None
        assert self.line.remove(head.request.id) is head
        del self.waiting[head.request.id]
        tokens = head.request.shapes[TOKENIZER].tokens
        charges = self.tenancy.charge([head.request], [tokens], head.fastest_ns)
        self.runs.append((charges, int(head.fastest_ns * ratio)))

    def end(self, place: int) -> None:
        if place < len(self.runs):
            charges, measured = self.runs.pop(place)
            self.tenancy.settle(charges, measured)

    def cancel(self, number: int) -> None:
        if self.waiting:
            chosen = sorted(self.waiting)[number % len(self.waiting)]
            assert self.line.remove(chosen) is not None
            del self.waiting[chosen]

    def check(self) -> None:
        assert self.line.violations() == []
        assert self.tenancy.violations(len(self.waiting), len(self.runs)) == []
        for one, other in itertools.permutations(NAMES, 2):
            ahead, behind = self.tenancy.account(one), self.tenancy.account(other)
            if not (ahead.clock.waiting and behind.clock.waiting):
                self.since.pop((one, other), None)
                continue
            lead = ahead.clock.time - behind.clock.time
            assert lead <= bound_ns(ahead, behind) + 1.0
            # What one was served more than the other since both began to wait.
            start = self.since.setdefault((one, other), lead)
            assert lead - start <= bound_ns(ahead, behind) + bound_ns(behind, ahead) + 1.0


def bound_ns(ahead: Account, behind: Account) -> float:
    """`B + (l + e) / share_i + e / share_j`: docs/tenants.md, with e for all that is in flight."""
    error = IN_FLIGHT * LONGEST_NS
    return (
        CONFIG.bound_ms * MS + (LONGEST_NS + error) / ahead.clock.share + error / behind.clock.share
    )


@settings(max_examples=150, deadline=None)
@given(steps)
def test_waiting_tenants_differ_by_the_stated_bound_at_most(actions: list[tuple[Any, ...]]) -> None:
    play = Play()
    for action in actions:
        getattr(play, action[0])(*action[1:])
        play.check()
    while play.waiting or play.runs:
        play.serve(1.0)
        play.end(0)
        play.check()
    assert all(a.in_flight_ns == 0 == a.waiting_ns for a in play.tenancy.accounts.values())


@settings(max_examples=100, deadline=None)
@given(steps)
def test_the_walk_behind_the_head_is_the_order_of_serving(actions: list[tuple[Any, ...]]) -> None:
    play = Play()
    for action in actions:
        getattr(play, action[0])(*action[1:])
    foreseen = [entry.request.id for entry in play.line.first(len(play.waiting))]
    served = []
    while (head := play.line.head()) is not None:
        served.append(head.request.id)
        play.line.remove(head.request.id)
        tokens = head.request.shapes[TOKENIZER].tokens
        play.tenancy.charge([head.request], [tokens], head.fastest_ns)
    assert foreseen == served


def test_two_that_always_wait_share_by_their_reservations() -> None:
    play = Play()
    for _ in range(300):
        for tenant in (0, 1):
            play.arrive(tenant, "", 10, 100)
    for _ in range(300):
        play.serve(1.0)
        play.end(0)
    large, middle = (play.tenancy.account(name).charged_ns for name in NAMES[:2])
    assert large + middle == 300 * 4 * MS
    assert abs(large / middle - 2.0) < 0.1


def test_within_the_bound_the_earlier_deadline_goes_first() -> None:
    play = Play()
    play.arrive(0, "", 10, 100)
    play.arrive(2, "", 10, 50)
    play.arrive(1, "", 10, 70)
    order = []
    while (head := play.line.head()) is not None:
        order.append(head.request.klass.tenant)
        play.serve(1.0)
    assert order == ["small", "middle", "large"]


def test_who_rested_earns_no_credit_and_owes_nothing() -> None:
    play = Play()
    for _ in range(100):
        play.arrive(0, "", 100, 100)
    for _ in range(50):
        play.serve(1.0)
        play.end(0)
    for _ in range(100):
        play.arrive(1, "", 100, 100)
    before = play.tenancy.account("large").charged_ns
    for _ in range(30):
        play.serve(1.0)
        play.end(0)
    large = play.tenancy.account("large").charged_ns - before
    middle = play.tenancy.account("middle").charged_ns
    assert abs(large / middle - 2.0) < 0.25


def test_a_class_gets_its_part_of_the_tenants_reservation() -> None:
    play = Play()
    for _ in range(300):
        play.arrive(1, "quick", 10, 100)
        play.arrive(1, "", 10, 1)
    quick = 0
    for _ in range(200):
        head = play.line.head()
        assert head is not None
        quick += head.request.klass.name == "quick"
        play.serve(1.0)
        play.end(0)
    # 300 of 500 CPU-ms a second are the class's, whatever the others' deadlines.
    assert abs(quick / 200 - 0.6) < 0.05
