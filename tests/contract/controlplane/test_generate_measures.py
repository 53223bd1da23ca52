"""Generations are counted: in the protocol's statistics, and in what metrics are made of."""

from __future__ import annotations

import grpc

from controlplane.config import ClassConfig
from controlplane.measures import NONE
from protos.inference import oip_pb2
from protos.orchid.v1 import inference_pb2
from tests.contract.controlplane.decode_worker import (
    WRITER,
    DecodeWorker,
    ask,
    full,
    limits,
    refusal,
    rest,
)
from tests.contract.controlplane.decode_worker import writers as house_of

VARIANT = "writer-q4"


async def test_generations_are_in_the_statistics_of_their_model() -> None:
    worker = DecodeWorker()
    async with house_of(worker) as house:
        await rest(house.inference.Generate(ask(limits=limits(n=2))))
        worker.script = full
        error, _ = await refusal(house.inference.Generate(ask()))
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        request = oip_pb2.ModelStatisticsRequest(name=WRITER)
        (found,) = (await house.oip.ModelStatistics(request)).model_stats
        stats = found.inference_stats
        assert (found.inference_count, stats.success.count, stats.fail.count) == (2, 1, 1)
        assert stats.success.ns > 0 and stats.queue.count == 1 and found.last_inference > 0
        await house.at_rest()


async def test_generations_are_measured_by_class_variant_and_reason() -> None:
    worker = DecodeWorker()
    async with house_of(worker, classes={"gold": ClassConfig()}) as house:
        klass = inference_pb2.RequestClass(tenant="acme", request_class="gold")
        events = await rest(house.inference.Generate(ask(request_class=klass)))
        usage = events[-1].completed.usage
        worker.script = full
        await refusal(house.inference.Generate(ask()))
        await refusal(house.inference.Generate(ask(model="nobody")))
        measures = house.generations.measures
        assert measures.received == {(WRITER, "gold"): 1, (WRITER, NONE): 1, (NONE, NONE): 1}
        assert measures.ended == {
            (WRITER, "gold", "answered"): 1,
            (WRITER, NONE, "refused"): 1,
            (NONE, NONE, "not-found"): 1,
        }
        assert measures.refused == {(WRITER, "worker"): 1}
        kinds = {kind: n for (_, _, kind), n in measures.tokens.items()}
        assert kinds == {
            "prompt": usage.prompt_tokens,
            "cached": usage.cached_tokens,
            "generated": usage.generated_tokens,
        }
        key = (WRITER, "gold", VARIANT)
        assert sum(measures.first_token[key].counts) == sum(measures.queue[key].counts) == 1
        assert sum(measures.duration[WRITER, "gold"].counts) == 1
        assert measures.duration[WRITER, "gold"].sum >= measures.first_token[key].sum > 0
        assert set(measures.callers.cpu_ns) == {("acme", "gold")}
        assert measures.in_targets == {(WRITER, "gold"): 1}
        await house.at_rest()
