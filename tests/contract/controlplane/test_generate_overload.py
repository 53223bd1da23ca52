"""Generations under overload and between tenants: what workers are asked, what callers see."""

from __future__ import annotations

import grpc

from controlplane.config import ClassConfig
from controlplane.policy.ladder import Rung
from controlplane.tenants import TenantConfig, TenantsConfig
from protos.orchid.v1 import inference_pb2
from tests.contract.controlplane.decode_worker import (
    WRITER,
    DecodeWorker,
    ask,
    refusal,
    rest,
    writers,
)


async def test_an_answer_is_cut_where_its_class_declares_it_and_says_so() -> None:
    worker = DecodeWorker()
    chatty = ClassConfig(overload_output_tokens=2, overload_output_quality=0.9)
    klass = inference_pb2.RequestClass(request_class="chatty")
    async with writers(worker, classes={"chatty": chatty}) as house:
        await rest(house.inference.Generate(ask(request_class=klass)))
        house.generations.overload.ladder(WRITER).rung = Rung.SHORTER
        events = await rest(house.inference.Generate(ask(request_class=klass)))
        plain = await rest(house.inference.Generate(ask()))
        whole, cut, other = worker.calls
        assert cut.limits.max_tokens == 2
        assert whole.limits.max_tokens > 2 and other.limits.max_tokens > 2
        provenance = events[-1].completed.provenance
        assert (provenance.overload_level, provenance.approximation) == (2, True)
        assert not plain[-1].completed.provenance.approximation
        (generator,) = (await house.status()).generators
        assert (generator.overload.level, generator.overload.cut) == (2, 1)


async def test_deferrable_generations_wait_outside() -> None:
    worker = DecodeWorker()
    nightly = ClassConfig(deferrable=True)
    klass = inference_pb2.RequestClass(request_class="nightly")
    async with writers(worker, classes={"nightly": nightly}) as house:
        house.generations.overload.ladder(WRITER).rung = Rung.DEFER
        error, _ = await refusal(house.inference.Generate(ask(request_class=klass)))
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "wait outside" in str(error.details())
        assert house.generations.measures.refused[WRITER, "overload-deferred"] == 1
        assert await rest(house.inference.Generate(ask()))
        await house.at_rest()


async def test_workers_are_told_whose_turn_it_is() -> None:
    worker = DecodeWorker()
    tenants = TenantsConfig(named={"shop": TenantConfig()})
    async with writers(worker, tenants=tenants) as house:
        house.generations.quotas.set_tenancy(house.dispatcher.tenancy)
        for tenant in ("shop", "stranger"):
            klass = inference_pb2.RequestClass(tenant=tenant)
            assert await rest(house.inference.Generate(ask(request_class=klass)))
        assert [call.account for call in worker.calls] == ["shop", "(others)"]


async def test_a_flood_of_another_tenant_does_not_turn_a_generation_away() -> None:
    worker = DecodeWorker()
    tenants = TenantsConfig(named={"shop": TenantConfig(), "flood": TenantConfig()})
    waiting = {"pending_prompt_tokens": 1_000_000, "pending_by_account": {"flood": 1_000_000}}
    async with writers(worker, tenants=tenants) as house:
        house.generations.quotas.set_tenancy(house.dispatcher.tenancy)
        await house.load(worker, variant="writer-q4", **waiting)
        klass = inference_pb2.RequestClass(tenant="flood")
        error, _ = await refusal(house.inference.Generate(ask(request_class=klass)))
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        klass = inference_pb2.RequestClass(tenant="shop")
        assert await rest(house.inference.Generate(ask(request_class=klass)))
