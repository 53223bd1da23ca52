"""What tenants' terms keep out of the decode lane, and that what was held comes back."""

from __future__ import annotations

import pytest

from controlplane.errors import ContextOverflow, Forbidden, InvalidRequest, Refused, Unsatisfiable
from controlplane.generation.quotas import Quotas
from controlplane.generation.records import GenerationLimits
from controlplane.policy.records import RequestClass
from controlplane.policy.tenancy.accounts import Account
from controlplane.policy.tenancy.tenancy import Tenancy
from controlplane.tenants import TenantConfig, TenantsConfig

SHOP, LAB = RequestClass(tenant="shop"), RequestClass(tenant="lab")
TERMS = TenantsConfig(
    named={
        "shop": TenantConfig(kv_block_s_per_s=60, max_generations=3, models=("m",)),
        "lab": TenantConfig(max_output_tokens=100, max_context_tokens=400),
    }
)


def quotas(config: TenantsConfig = TERMS) -> tuple[Quotas, Tenancy]:
    made, tenancy = Quotas(), Tenancy(config)
    made.set_tenancy(tenancy)
    return made, tenancy


def held(account: Account) -> tuple[int, int]:
    return account.open, account.held_blocks


def test_without_tenants_nothing_is_bounded_and_nothing_kept() -> None:
    made = Quotas()
    limits = GenerationLimits(max_tokens=10**9)
    made.authorise(SHOP, "x")
    assert made.bounded(SHOP, 10**9, limits) is limits
    assert made.prefix_scope(SHOP, 1) == "shop"
    made.take(1, SHOP, 10**9, 1, 1)
    assert len(made) == 0
    made.release(1)


def test_workers_serve_tenants_in_turn_and_those_without_terms_as_one() -> None:
    assert Quotas().account(SHOP) == ""
    made, _ = quotas()
    assert made.account(SHOP) == "shop"
    strangers = {made.account(RequestClass(tenant=name)) for name in ("x", "y", "")}
    assert strangers == {"(others)"}


def test_turns_are_weighed_by_reserved_blocks() -> None:
    made, _ = quotas()
    # Whoever reserves nothing where others do has a tenth of their mean.
    assert made.weights == {"shop": 1.0, "lab": 0.1, "(others)": 0.1}
    named = {"shop": TenantConfig(kv_block_s_per_s=30), "lab": TenantConfig(kv_block_s_per_s=90)}
    made.set_tenancy(Tenancy(TenantsConfig(named=named)))
    assert made.weights == {"shop": 0.5, "lab": 1.5, "(others)": 0.1}
    made.set_tenancy(Tenancy(TenantsConfig(named={"shop": TenantConfig()})))
    assert set(made.weights.values()) == {1.0}
    made.set_tenancy(None)
    assert made.weights == {}


def test_models_are_authorised() -> None:
    made, _ = quotas()
    made.authorise(SHOP, "m")
    with pytest.raises(Forbidden):
        made.authorise(SHOP, "x")


def test_answers_without_a_longest_length_get_the_tenants() -> None:
    made, _ = quotas()
    assert made.bounded(LAB, 10, GenerationLimits()).max_tokens == 100
    assert made.bounded(LAB, 350, GenerationLimits()).max_tokens == 50
    assert made.bounded(LAB, 10, GenerationLimits(max_tokens=7)).max_tokens == 7
    assert made.bounded(SHOP, 10, GenerationLimits()).max_tokens == 0


def test_longer_ones_than_the_tenant_may_ask_for_are_refused_with_the_bound() -> None:
    made, _ = quotas()
    with pytest.raises(InvalidRequest, match=r"max_tokens is 101; tenant 'lab' may ask for 100"):
        made.bounded(LAB, 10, GenerationLimits(max_tokens=101))
    for prompt, most in ((400, 0), (350, 51)):
        with pytest.raises(ContextOverflow, match="have 400 tokens at most"):
            made.bounded(LAB, prompt, GenerationLimits(max_tokens=most))


def test_long_contexts_of_one_tenant_leave_the_others_reservation() -> None:
    made, tenancy = quotas()
    made.take(1, LAB, 16 * 40, 100, 250)
    with pytest.raises(Refused, match="holds 40 of the 40 KV blocks") as refused:
        made.take(2, LAB, 16, 100, 250)
    assert refused.value.retry_after_ms == 250
    with pytest.raises(Unsatisfiable, match="41 KV blocks may be needed"):
        made.take(3, LAB, 16 * 41, 100, 250)
    made.take(4, SHOP, 16 * 60, 100, 250)
    assert held(tenancy.account("shop")) == (1, 60)
    assert tenancy.account("lab").refused == 2
    for number in (1, 2, 3, 4, 4):
        made.release(number, live_token_ms=5)
    assert [held(a) for a in tenancy.accounts.values()] == [(0, 0)] * 3
    assert tenancy.account("shop").held_token_ms == 5


def test_callers_without_terms_are_told_that_they_share_an_account() -> None:
    others = TenantConfig(max_output_tokens=100, max_context_tokens=400)
    made, tenancy = quotas(TenantsConfig(named=TERMS.named, others=others))
    x, nobody = RequestClass(tenant="x"), RequestClass()
    made.take(1, x, 16 * 12, 72, 250)
    assert held(tenancy.account("")) == (1, 12)
    together = "everybody who is not configured holds 12 of the 12 KV blocks"
    with pytest.raises(Refused, match=together):
        made.take(2, nobody, 16, 72, 250)
    with pytest.raises(Unsatisfiable, match=r"13 KV blocks .* who is not configured may hold 12"):
        made.take(2, nobody, 16 * 13, 72, 250)
    with pytest.raises(InvalidRequest, match="everybody who is not configured may ask for 100"):
        made.bounded(nobody, 10, GenerationLimits(max_tokens=101))
    with pytest.raises(ContextOverflow, match="of everybody who is not configured have 400"):
        made.bounded(nobody, 400, GenerationLimits())


def test_where_no_blocks_are_reserved_generations_wait_on_the_worker() -> None:
    made, tenancy = quotas(TenantsConfig(named={"shop": TenantConfig()}))
    for number in range(3):
        made.take(number, RequestClass(), 16 * 12, 22, 250)
    made.take(3, SHOP, 16 * 12, 22, 250)
    assert [held(each) for each in tenancy.accounts.values()] == [(1, 12), (3, 36)]


def test_open_generations_are_bounded() -> None:
    made, _ = quotas()
    for number in range(3):
        made.take(number, SHOP, 1, 100, 1)
    with pytest.raises(Refused, match="3 generations open, as many as it may"):
        made.take(3, SHOP, 1, 100, 1)


def test_what_is_open_stays_counted_under_new_terms() -> None:
    made, tenancy = quotas()
    made.take(1, LAB, 32, 100, 1)
    made.take(2, SHOP, 16, 100, 1)
    fresh = tenancy.carried(TenantsConfig(named={"shop": TenantConfig()}))
    made.set_tenancy(fresh)
    assert held(fresh.account("lab")) == (1, 2)
    made.release(1)
    made.set_tenancy(None)
    made.set_tenancy(fresh := Tenancy(TERMS))
    made.release(2)
    assert all(held(a) == (0, 0) for a in fresh.accounts.values())


def test_a_tenant_that_goes_and_comes_back_owes_nothing_and_is_owed_nothing() -> None:
    made, tenancy = quotas()
    for number in range(3):
        made.take(number, LAB, 32, 100, 1)
    without = tenancy.carried(TenantsConfig(named={"shop": TenantConfig()}))
    made.set_tenancy(without)
    again = without.carried(TERMS)
    made.set_tenancy(again)
    assert held(again.account("nobody")) == (3, 6)
    made.take(3, LAB, 16, 100, 1)
    for number in range(4):
        made.release(number)
    assert all(held(each) == (0, 0) for each in again.accounts.values())
