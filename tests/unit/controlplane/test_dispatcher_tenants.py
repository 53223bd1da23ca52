"""The dispatcher with tenants: what they may ask, what they are charged, terms that change."""

from __future__ import annotations

import pytest

from controlplane.errors import Forbidden, InvalidRequest, Refused
from controlplane.policy.records import RequestClass
from controlplane.tenants import PrivacyConfig, TenantConfig, TenantsConfig
from tests.unit.controlplane.fake_fleet import MS, House
from tests.unit.controlplane.virtual_loop import virtual

TERMS = TenantsConfig(
    named={
        "shop": TenantConfig(cpu_ms_per_s=500, models=("m",), max_queued=1),
        "lab": TenantConfig(cpu_ms_per_s=500, models=("n",)),
    },
    privacy={"sealed": PrivacyConfig()},
)


def ask(house: House, tenant: str, deadline_ms: float = 100.0, privacy: str = ""):  # type: ignore[no-untyped-def]
    request = house.ask(deadline_ms)
    request.klass = RequestClass(tenant=tenant, privacy_class=privacy)
    return request


@virtual
async def test_a_tenant_is_charged_what_its_answers_took() -> None:
    house = House(tenants=TERMS)
    house.join()
    answer = await house.dispatcher.submit(ask(house, "shop"))
    tenancy = house.dispatcher.tenancy
    assert tenancy is not None
    shop = tenancy.account("shop")
    assert shop.charged_ns == answer.outcome.charged_cpu_ns == 10 * MS
    assert (shop.admitted, shop.in_flight_ns, shop.waiting_ns) == (1, 0, 0)
    assert house.dispatcher.violations() == []
    house.close()


@virtual
async def test_what_a_tenant_may_not_do_is_said() -> None:
    house = House(tenants=TERMS)
    house.join()
    with pytest.raises(Forbidden, match="tenant 'lab' may not use model 'm'"):
        house.dispatcher.submit(ask(house, "lab"))
    with pytest.raises(InvalidRequest, match="unknown privacy class 'sealled'"):
        house.dispatcher.submit(ask(house, "shop", privacy="sealled"))
    assert house.dispatcher.counters.outcomes["m"] == {"forbidden": 1, "invalid": 1}
    house.close()


@virtual
async def test_terms_change_while_requests_wait() -> None:
    house = House(tenants=TERMS, prefetch=0)
    house.join()
    running = house.dispatcher.submit(ask(house, "shop"))
    await house.pass_ms(1)
    waiting = house.dispatcher.submit(ask(house, "shop"))
    with pytest.raises(Refused, match="as many requests queued as it may"):
        house.dispatcher.submit(ask(house, "shop"))
    house.dispatcher.set_tenants(TenantsConfig(named={"shop": TenantConfig(cpu_ms_per_s=900)}))
    assert house.dispatcher.violations() == []
    more = house.dispatcher.submit(ask(house, "shop"))
    house.dispatcher.set_tenants(TenantsConfig())
    assert house.dispatcher.tenancy is None
    for future in (running, waiting, more):
        await future
    assert house.at_rest()
    house.close()
