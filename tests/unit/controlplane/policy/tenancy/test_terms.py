"""What a tenant's own terms keep out, who may share what, and accounts under new terms."""

from __future__ import annotations

import pytest

from controlplane.errors import Forbidden, InvalidRequest
from controlplane.policy.admission import Refusal
from controlplane.policy.records import RequestClass
from controlplane.policy.tenancy.accounts import LEAST_SHARE
from controlplane.policy.tenancy.tenancy import OTHERS, Tenancy
from controlplane.tenants import PrivacyConfig, TenantConfig, TenantsConfig
from tests.unit.controlplane.policy.world import MS, request

SHOP = RequestClass(tenant="shop")


def tenancy(shop: TenantConfig, **settings: object) -> Tenancy:
    return Tenancy(TenantsConfig(named={"shop": shop}, **settings))  # type: ignore[arg-type]


def refused(made: Tenancy, service_ms: float, now_ms: float = 0.0) -> tuple[str, int]:
    admission = made.refusal(made.section(SHOP), service_ms * MS, int(now_ms * MS))
    if admission is None:
        return "", 0
    assert not admission.admitted and admission.variants == ()
    return admission.reason, admission.retry_after_ms


def test_queued_requests_are_bounded_exactly() -> None:
    made = tenancy(TenantConfig(cpu_ms_per_s=500, max_queued=2))
    section = made.section(SHOP)
    for _ in range(2):
        assert refused(made, 10.0) == ("", 0)
        made.enter(section, 10 * MS)
    # 20 ms of work drain in 40 ms at half a core.
    assert refused(made, 10.0) == (Refusal.TENANT_QUEUE, 40)
    made.leave(section, 10 * MS)
    assert refused(made, 10.0) == ("", 0)
    assert made.account("shop").refused == 1


def test_queued_work_is_bounded_but_one_request_always_gets_in() -> None:
    made = tenancy(TenantConfig(cpu_ms_per_s=1000, max_queued_ms=15))
    assert refused(made, 100.0) == ("", 0)
    made.enter(made.section(SHOP), 10 * MS)
    assert refused(made, 5.0) == ("", 0)
    assert refused(made, 6.0) == (Refusal.TENANT_WORK, 10)


def test_borrowing_is_bounded_and_time_gives_it_back() -> None:
    made = tenancy(TenantConfig(cpu_ms_per_s=200, borrow_cpu_ms_per_s=100))
    asked = request(100, klass=SHOP)
    for _ in range(3):
        assert refused(made, 100.0) == ("", 0)
        made.settle(made.charge([asked], [10], 100 * MS), 100 * MS)
    # A second's worth of 300 CPU-ms is used; 100 more are there after a third of a second.
    assert refused(made, 100.0) == (Refusal.TENANT_RATE, 334)
    assert refused(made, 100.0, now_ms=333.0)[0] == Refusal.TENANT_RATE
    assert refused(made, 100.0, now_ms=334.0) == ("", 0)


def test_what_is_free_may_be_borrowed_without_a_bound() -> None:
    made = tenancy(TenantConfig(cpu_ms_per_s=1))
    made.charge([request(100, klass=SHOP)], [10], 3600 * 1000 * MS)
    assert refused(made, 1000.0) == ("", 0)


def test_a_run_is_charged_by_size_and_settled_by_what_it_took() -> None:
    made = tenancy(TenantConfig(cpu_ms_per_s=1000))
    other = request(100, klass=RequestClass(tenant="nobody"))
    charges = made.charge([request(100, klass=SHOP), other], [30, 10], 100)
    shop, others = made.account("shop"), made.account("nobody")
    assert [charge.work_ns for charge in charges] == [75, 25]
    assert (shop.in_flight_ns, others.in_flight_ns) == (75, 25)
    made.settle(charges, 200)
    assert (shop.in_flight_ns, others.in_flight_ns) == (0, 0)
    assert (shop.charged_ns, others.charged_ns) == (150, 50)
    assert shop.clock.time == 150.0
    assert others.clock.time == pytest.approx(50 / LEAST_SHARE)


@pytest.mark.parametrize(("total", "sizes"), [(1, [3, 3, 3]), (100, [0, 0]), (7, [1, 5])])
def test_parts_of_a_run_add_up(total: int, sizes: list[int]) -> None:
    made = tenancy(TenantConfig(cpu_ms_per_s=1000))
    charges = made.charge([request(100, klass=SHOP) for _ in sizes], sizes, total)
    assert sum(charge.work_ns for charge in charges) == total
    made.settle(charges, 0)
    assert made.account("shop").in_flight_ns == made.account("shop").charged_ns == 0


def test_names_that_are_not_configured_are_one_tenant() -> None:
    made = tenancy(TenantConfig(cpu_ms_per_s=1000))
    assert made.account("one") is made.account("two") is made.accounts[OTHERS]


def test_models_are_authorised_by_tenant() -> None:
    made = tenancy(TenantConfig(models=("m", "n")))
    made.authorise(SHOP, "m")
    made.authorise(RequestClass(tenant="other"), "anything")
    with pytest.raises(Forbidden, match=r"tenant 'shop' may not use model 'x'.*: m, n"):
        made.authorise(SHOP, "x")
    with pytest.raises(InvalidRequest, match="line breaks"):
        made.authorise(RequestClass(tenant="shop\nsealed"), "m")


PRIVACY = {"sealed": PrivacyConfig(), "alone": PrivacyConfig("none", "none"),
           "open": PrivacyConfig("all", "all")}  # fmt: skip


def test_cells_say_who_may_share_a_run() -> None:
    made = tenancy(TenantConfig(privacy="sealed"), privacy=PRIVACY)
    sealed, other = made.cell(SHOP, 1), made.cell(RequestClass("x", privacy_class="sealed"), 2)
    assert sealed == made.cell(SHOP, 9) != other
    assert made.cell(RequestClass("x"), 3) == made.cell(RequestClass("shop", "", "open"), 4) == ""
    alone = RequestClass("shop", privacy_class="alone")
    assert made.cell(alone, 5) != made.cell(alone, 6)
    with pytest.raises(InvalidRequest, match="unknown privacy class 'sealled'"):
        made.cell(RequestClass("shop", privacy_class="sealled"), 1)


def test_prefixes_stay_in_the_tenant_at_least() -> None:
    made = tenancy(TenantConfig(privacy="sealed"), privacy=PRIVACY)
    plain, sealed = RequestClass("x"), RequestClass("x", privacy_class="sealed")
    assert made.prefix_scope(plain, 1) == "x"
    assert made.prefix_scope(RequestClass("x", privacy_class="open"), 1) == "x"
    assert made.prefix_scope(sealed, 1) == made.prefix_scope(sealed, 2) != "x"
    alone = RequestClass("x", privacy_class="alone")
    assert made.prefix_scope(alone, 1) != made.prefix_scope(alone, 2)


def test_accounts_go_on_under_new_terms() -> None:
    made = tenancy(TenantConfig(cpu_ms_per_s=1000))
    gone = RequestClass(tenant="gone")
    made = made.carried(TenantsConfig(named={"shop": TenantConfig(cpu_ms_per_s=1000),
                                             "gone": TenantConfig(cpu_ms_per_s=10)}))  # fmt: skip
    runs = [made.charge([request(9, klass=k)], [1], 60 * MS) for k in (SHOP, gone)]
    made.settle(made.charge([request(9, klass=SHOP)], [1], 40 * MS), 40 * MS)
    fresh = made.carried(TenantsConfig(named={"shop": TenantConfig(cpu_ms_per_s=500)}))
    shop = fresh.account("shop")
    # As much work ahead of the floor as before, which takes twice as long at half the share.
    assert shop.clock.time - fresh.peers.floor == 2 * 100 * MS
    assert shop.charged_ns == 40 * MS
    assert fresh.accounts[OTHERS].in_flight_ns == 60 * MS
    for run in runs:
        fresh.settle(run, 60 * MS)
    assert fresh.violations(0, 0) == []
    assert fresh.version > made.version


def test_what_does_not_add_up_is_found() -> None:
    made = tenancy(TenantConfig(cpu_ms_per_s=1000))
    made.enter(made.section(SHOP), 5)
    made.charge([request(9, klass=SHOP)], [1], 7)
    assert len(made.violations(0, 0)) == 2
    assert made.violations(1, 1) == []


def test_a_run_is_settled_with_whoever_went_on_with_what_it_was_charged() -> None:
    made = tenancy(TenantConfig(cpu_ms_per_s=500))
    charges = made.charge([request(1, klass=SHOP)], [10], 10 * MS)
    again = made.carried(TenantsConfig()).carried(made.config)
    assert again.account(OTHERS).in_flight_ns == 10 * MS
    again.settle(charges, 12 * MS)
    assert [each.in_flight_ns for each in again.accounts.values()] == [0, 0]
    assert again.account(OTHERS).charged_ns == 12 * MS
