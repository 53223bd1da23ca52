"""orchid.v1 Generate through every layer of the control plane to a scripted decode worker."""

from __future__ import annotations

import grpc
import pytest

from controlplane.config import ClassConfig
from controlplane.registry import ModelInfo, WorkerIdentity
from controlplane.rpc.wire import read_models
from protos.inference import oip_pb2
from protos.orchid.v1 import common_pb2, inference_pb2
from tests.contract.controlplane.decode_worker import (
    WRITER,
    DecodeWorker,
    ask,
    chat,
    echo,
    full,
    limits,
    refusal,
    rest,
    text_of,
    writer,
    writers,
)
from tests.contract.controlplane.fake_worker import FakeWorker

CODE = grpc.StatusCode


async def test_a_generation_is_streamed_with_its_provenance_and_usage() -> None:
    worker = DecodeWorker()
    async with writers(worker) as house:
        events = await rest(house.inference.Generate(ask(request_id="r7")))
        kinds = [event.WhichOneof("event") for event in events]
        assert kinds == ["admitted", *["delta"] * 4, "finished", "completed"]
        assert {event.request_id for event in events} == {"r7"}
        assert text_of(events) == "once upon a time "
        assert events[0].admitted.admitted.prompt_tokens == 4
        provenance = events[-1].completed.provenance
        assert provenance == events[0].admitted.provenance
        assert (provenance.model, provenance.variant, provenance.worker_id) == (
            WRITER,
            "writer-q4",
            "d1",
        )
        assert provenance.reason == "best-in-target" and not provenance.approximation
        assert events[-1].completed.usage.generated_tokens == 4
        assert events[-2].finished.reason == common_pb2.FINISH_REASON_LENGTH
        await house.at_rest()


async def test_what_the_worker_is_asked() -> None:
    worker = DecodeWorker()
    async with writers(worker) as house:
        request = ask(
            "once upon",
            sampling=common_pb2.Sampling(temperature=0.7, top_k=5, top_p=0.9, seed=0),
            limits=limits(max_tokens=3, stop=["x"], stop_token_ids=[8], n=2, logprobs=0),
            request_class=inference_pb2.RequestClass(tenant="t"),
            deadline_ms=50_000,
            first_token_target_ms=40_000,
            token_target_ms=30,
        )
        assert await rest(house.inference.Generate(request))
        (call,) = worker.calls
        assert list(call.prompt) == [4, 5]
        assert call.sampling == request.sampling and call.sampling.HasField("seed")
        assert call.limits == request.limits and call.limits.HasField("logprobs")
        assert (call.tenant, call.variant) == ("t", "writer-q4")
        assert 0 < call.budget_us < 50_000_000 - 1_500
        assert 0 < call.first_token_target_us <= 40_000_000
        assert not call.first_token_target_grows
        assert call.token_target_us == 30_000
        # The call itself ends soon after nobody waits for it any more.
        assert call.budget_us / 1e6 - 5 < worker.remaining_s[0] < 50.2


async def test_targets_deadline_and_floor_come_from_the_class() -> None:
    worker = DecodeWorker()
    quick = ClassConfig(
        generation_deadline_ms=90_000,
        first_token_target_ms=70,
        token_target_ms=20,
        deadline_ms=1,
    )
    strict = ClassConfig(minimum_quality=0.9)
    async with writers(worker, classes={"quick": quick, "strict": strict}) as house:
        for name in ("", "quick"):
            klass = inference_pb2.RequestClass(request_class=name)
            assert await rest(house.inference.Generate(ask(request_class=klass)))
        plain, named = worker.calls
        assert plain.token_target_us == 50_000 and 90_000_000 < plain.budget_us < 120_000_000
        assert plain.first_token_target_us <= 500_000
        assert named.token_target_us == 20_000 and 0 < named.budget_us < 90_000_000
        assert named.first_token_target_us <= 70_000
        assert plain.first_token_target_grows and named.first_token_target_grows
        klass = inference_pb2.RequestClass(request_class="strict")
        error, _ = await refusal(house.inference.Generate(ask(request_class=klass)))
        assert error.code() is CODE.FAILED_PRECONDITION
        assert "its quality has not been measured" in str(error.details())
        klass = inference_pb2.RequestClass(request_class="loud")
        error, _ = await refusal(house.inference.Generate(ask(request_class=klass)))
        assert error.code() is CODE.INVALID_ARGUMENT and "quick" in str(error.details())


async def test_without_max_tokens_the_answer_may_fill_the_context() -> None:
    worker = DecodeWorker()
    async with writers(worker) as house:
        assert await rest(house.inference.Generate(ask("once upon a")))
        assert worker.calls[0].limits.max_tokens == 64 - 3


async def test_a_chat_is_rendered_and_token_ids_are_taken_as_they_are() -> None:
    worker = DecodeWorker(models=[writer(begin=0)])
    async with writers(worker) as house:
        turns = chat(("system", "a time"), ("user", "once upon"))
        for request in (
            ask(chat=turns),
            ask(tokens=inference_pb2.PromptTokens(ids=[7, 6])),
            ask("upon"),
        ):
            assert await rest(house.inference.Generate(request))
        prompts = [list(call.prompt) for call in worker.calls]
        # `<system>` is no word of this tokenizer.
        assert prompts[0] == [0, 6, 7, 2, 4, 5, 3]
        assert prompts[1:] == [[7, 6], [0, 5]]


@pytest.mark.parametrize(
    ("request_", "code", "told"),
    [
        (ask(""), CODE.INVALID_ARGUMENT, "text is empty"),
        (
            inference_pb2.GenerateRequest(model=WRITER),
            CODE.INVALID_ARGUMENT,
            "one of text, chat, tokens",
        ),
        (ask(model=""), CODE.INVALID_ARGUMENT, "models that generate: 'writer'"),
        (ask(model="reader"), CODE.NOT_FOUND, "'writer'"),
        (ask(chat=inference_pb2.Chat()), CODE.INVALID_ARGUMENT, "at least one message"),
        (
            ask(chat=chat(("tool", "x"))),
            CODE.INVALID_ARGUMENT,
            "role 'tool'; accepted: system, user, assistant",
        ),
        (ask(chat=chat(("assistant", "x"))), CODE.INVALID_ARGUMENT, "last message"),
        (
            ask(tokens=inference_pb2.PromptTokens(ids=[3, 9])),
            CODE.INVALID_ARGUMENT,
            "holds 9; accepted: 0 to 8",
        ),
        (
            ask(sampling=common_pb2.Sampling(temperature=float("nan"))),
            CODE.INVALID_ARGUMENT,
            "temperature is nan; accepted: 0 to 10",
        ),
        (ask(sampling=common_pb2.Sampling(top_p=1.5)), CODE.INVALID_ARGUMENT, "top_p is 1.5"),
        (ask(limits=limits(n=99)), CODE.INVALID_ARGUMENT, "n is 99; accepted: 1 to 16"),
        (ask(limits=limits(logprobs=21)), CODE.INVALID_ARGUMENT, "logprobs is 21"),
        (ask(limits=limits(stop=[""])), CODE.INVALID_ARGUMENT, "stop string 0"),
        (ask(limits=limits(stop_token_ids=[9])), CODE.INVALID_ARGUMENT, "accepted: 0 to 8"),
        (ask(first_token_target_ms=-1), CODE.INVALID_ARGUMENT, "first_token_target_ms is -1"),
        (ask(deadline_ms=-1), CODE.DEADLINE_EXCEEDED, "had passed"),
        (ask(deadline_ms=10**9), CODE.INVALID_ARGUMENT, "deadline_ms is 1000000000"),
        (
            ask(request_class=inference_pb2.RequestClass(variant="writer-q5")),
            CODE.NOT_FOUND,
            "no worker has variant 'writer-q5' of model 'writer'; they have: 'writer-q4'",
        ),
        (
            ask(request_class=inference_pb2.RequestClass(prohibited_variants=["writer-q4"])),
            CODE.FAILED_PRECONDITION,
            "writer-q4: prohibited",
        ),
        (
            ask(request_class=inference_pb2.RequestClass(tenant="t" * 65)),
            CODE.INVALID_ARGUMENT,
            "tenant has 65 characters; at most 64",
        ),
        (
            ask(limits=limits(max_tokens=61)),
            CODE.INVALID_ARGUMENT,
            "has 4 tokens and max_tokens is 61, 65 together; the context of model 'writer' is "
            "64 tokens: max_tokens may be up to 60",
        ),
        (
            ask("time " * 70),
            CODE.INVALID_ARGUMENT,
            "the prompt has 70 tokens and needs at least 1 more for an answer; the context of "
            "model 'writer' is 64 tokens: shorten the prompt by 7",
        ),
        (
            ask(limits=limits(max_tokens=100_000)),
            CODE.INVALID_ARGUMENT,
            "max_tokens is 100000; the context of model 'writer' is 64 tokens, the prompt's among "
            "them: max_tokens may be up to 63",
        ),
        (
            ask("time " * 2000),
            CODE.INVALID_ARGUMENT,
            "the prompt has 10000 characters; the context of model 'writer' is 64 tokens, which "
            "are at most 8192",
        ),
        (ask(first_token_target_ms=1), CODE.FAILED_PRECONDITION, "takes at least 1.4 ms"),
    ],
)
async def test_what_cannot_be_is_said_at_once(
    request_: inference_pb2.GenerateRequest, code: grpc.StatusCode, told: str
) -> None:
    worker = DecodeWorker()
    async with writers(worker) as house:
        error, events = await refusal(house.inference.Generate(request_))
        assert (error.code(), events) == (code, []), error.details()
        assert told in str(error.details())
        overflow = "64 tokens" in told
        kind = dict(error.trailing_metadata() or ()).get("orchid-reason")
        assert kind == ("context-overflow" if overflow else None)
        assert worker.calls == []
        await house.at_rest()


@pytest.mark.parametrize(
    ("template", "code", "told"),
    [
        ("", CODE.FAILED_PRECONDITION, "has no chat template"),
        ("{% for %}", CODE.FAILED_PRECONDITION, "cannot be used"),
        ("{{ raise_exception('no systems') }}", CODE.INVALID_ARGUMENT, "no systems"),
        ("{{ messages.__class__.mro() }}", CODE.FAILED_PRECONDITION, "cannot be used"),
    ],
)
async def test_a_template_that_fails(template: str, code: grpc.StatusCode, told: str) -> None:
    worker = DecodeWorker(models=[writer(template=template)])
    async with writers(worker) as house:
        error, _ = await refusal(house.inference.Generate(ask(chat=chat(("user", "once")))))
        assert error.code() is code and told in str(error.details())


async def test_an_arena_smaller_than_the_context_is_named() -> None:
    worker = DecodeWorker(models=[writer(arena_tokens=32)])
    async with writers(worker) as house:
        error, _ = await refusal(house.inference.Generate(ask(limits=limits(max_tokens=30))))
        assert error.code() is CODE.INVALID_ARGUMENT
        assert "hold sequences of 32 tokens: max_tokens may be up to 28" in str(error.details())


async def test_each_lane_points_to_the_other() -> None:
    async with writers(DecodeWorker()) as house:
        infer = inference_pb2.InferRequest(model=WRITER, text=inference_pb2.TextInput(texts=["a"]))
        with pytest.raises(grpc.aio.AioRpcError) as native:
            await house.inference.Infer(infer)
        with pytest.raises(grpc.aio.AioRpcError) as oip:
            await house.oip.ModelInfer(oip_pb2.ModelInferRequest(model_name=WRITER))
        for error in (native.value, oip.value):
            assert error.code() is CODE.INVALID_ARGUMENT
            assert "orchid.v1.Inference/Generate" in str(error.details())


async def test_generating_with_a_classifier_points_to_infer() -> None:
    async with writers(DecodeWorker()) as house:
        house.registry.report_models(
            house.registry.join(_encoder(), 0), _classifiers(FakeWorker().models)
        )
        error, _ = await refusal(house.inference.Generate(ask(model="tiny")))
        assert error.code() is CODE.INVALID_ARGUMENT
        assert "its task is text-classification" in str(error.details())


async def test_metadata_readiness_and_status_show_the_model() -> None:
    worker = DecodeWorker(models=[writer(quality=0.75)])
    async with writers(worker) as house:
        assert (await house.oip.ModelReady(oip_pb2.ModelReadyRequest(name=WRITER))).ready
        assert (await house.oip.ServerReady(oip_pb2.ServerReadyRequest())).ready
        metadata = await house.oip.ModelMetadata(oip_pb2.ModelMetadataRequest(name=WRITER))
        assert metadata.name == WRITER and list(metadata.versions) == ["1"]
        index = await house.oip.RepositoryIndex(oip_pb2.RepositoryIndexRequest())
        assert [(entry.name, entry.state) for entry in index.models] == [(WRITER, "READY")]
        assert await rest(house.inference.Generate(ask()))
        await house.load(worker, variant="writer-q4", decoding=3, total_blocks=256, free_blocks=99)
        status = await house.status()
        assert [p.model for p in status.pools] == []
        (generator,) = status.generators
        assert (generator.model, generator.state, generator.open) == (WRITER, "ready", 0)
        assert dict(generator.outcomes) == {"answered": 1}
        (lane,) = generator.lanes
        assert (lane.worker_id, lane.variant, lane.quality) == ("d1", "writer-q4", 0.75)
        assert (lane.most_tokens, lane.answered, lane.load.decoding) == (64, 1, 3)
        assert lane.load.free_blocks == 99 and lane.profile.prefill_us_per_token == 100.0
        (told,) = status.workers
        assert (told.state, told.hello.worker_class) == ("ready", 2)
        assert told.load.decode[0].total_blocks == 256


async def test_a_model_that_loads_is_not_ready_yet() -> None:
    worker = DecodeWorker(models=[writer(ready=False)])
    async with writers(worker) as house:
        assert not (await house.oip.ModelReady(oip_pb2.ModelReadyRequest(name=WRITER))).ready
        error, _ = await refusal(house.inference.Generate(ask()))
        assert error.code() is CODE.UNAVAILABLE and "loading (50%)" in str(error.details())


async def test_the_best_variant_that_makes_its_target_answers() -> None:
    wide = DecodeWorker("wide", [writer(variant="writer-fp32", precision="fp32", prefill_us=25e6)])
    narrow = DecodeWorker("narrow")
    async with writers(narrow, wide) as house:
        variants = []
        for target in (900_000, 60_000):
            request = ask(
                first_token_target_ms=target, deadline_ms=1_000_000, limits=limits(max_tokens=2)
            )
            events = await rest(house.inference.Generate(request))
            provenance = events[-1].completed.provenance
            variants.append((provenance.variant, provenance.approximation, provenance.reason))
        assert variants == [
            ("writer-fp32", False, "best-in-target"),
            ("writer-q4", True, "less-but-in-target"),
        ]


async def test_without_approximation_the_best_variant_answers_or_none() -> None:
    wide = DecodeWorker("wide", [writer(variant="writer-fp32", precision="fp32", prefill_us=25e6)])
    narrow = DecodeWorker("narrow")
    exact = ClassConfig(approximation=False)
    async with writers(narrow, wide, classes={"exact": exact}) as house:
        for klass in (
            inference_pb2.RequestClass(request_class="exact"),
            inference_pb2.RequestClass(prohibit_approximation=True),
        ):
            patient = ask(request_class=klass, first_token_target_ms=900_000, deadline_ms=1_000_000)
            events = await rest(house.inference.Generate(patient))
            provenance = events[-1].completed.provenance
            assert (provenance.variant, provenance.approximation) == ("writer-fp32", False)
            hasty = ask(request_class=klass, first_token_target_ms=1000, deadline_ms=1_000_000)
            error, _ = await refusal(house.inference.Generate(hasty))
            assert error.code() is CODE.FAILED_PRECONDITION
        assert not narrow.calls


async def test_a_floor_and_a_pin_hold_for_generations() -> None:
    good = DecodeWorker("good", [writer(variant="writer-int8", precision="int8", quality=0.95)])
    worse = DecodeWorker("worse", [writer(quality=0.8)])
    async with writers(worse, good) as house:
        klass = inference_pb2.RequestClass(minimum_quality=0.9)
        events = await rest(house.inference.Generate(ask(request_class=klass)))
        assert events[-1].completed.provenance.quality == 0.95
        klass = inference_pb2.RequestClass(variant="writer-q4")
        events = await rest(house.inference.Generate(ask(request_class=klass)))
        assert events[-1].completed.provenance.worker_id == "worse"


async def test_a_pin_to_what_still_loads_is_told_what_is_ready() -> None:
    ready = DecodeWorker("ready")
    loading = DecodeWorker(
        "loading", [writer(variant="writer-int8", precision="int8", ready=False)]
    )
    async with writers(ready, loading) as house:
        klass = inference_pb2.RequestClass(variant="writer-int8")
        error, _ = await refusal(house.inference.Generate(ask(request_class=klass)))
        assert error.code() is CODE.UNAVAILABLE
        assert "ready now; ready: 'writer-q4'" in str(error.details())


async def test_prompts_ahead_are_refused_with_the_time_they_take() -> None:
    worker = DecodeWorker()
    async with writers(worker) as house:
        # 100 us a token: 10,000 tokens take a second.
        await house.load(worker, waiting=9, pending_prompt_tokens=10_000)
        error, _ = await refusal(house.inference.Generate(ask()))
        assert error.code() is CODE.RESOURCE_EXHAUSTED
        trailers = dict(error.trailing_metadata() or ())
        # A second and a bit more, less the target, and what the way here took.
        assert 501 <= int(trailers["retry-after-ms"]) < 60_000
        assert worker.calls == []
        await house.load(worker, pending_prompt_tokens=0)
        assert await rest(house.inference.Generate(ask()))


async def test_a_workers_refusal_is_tried_elsewhere_and_passed_on() -> None:
    refusing = DecodeWorker("refusing", script=full)
    async with writers(refusing) as house:
        error, events = await refusal(house.inference.Generate(ask()))
        assert (error.code(), events) == (CODE.RESOURCE_EXHAUSTED, [])
        assert error.details() == "the arena is full"
        assert dict(error.trailing_metadata() or ())["retry-after-ms"] == "70"
        other = DecodeWorker("other", script=echo)
        await house.join(other)
        for _ in range(4):
            events = await rest(house.inference.Generate(ask()))
            assert events[-1].completed.provenance.worker_id == "other"
        assert len(other.calls) == 4
        await house.at_rest()


async def test_without_a_decode_worker_nothing_can_serve() -> None:
    worker = DecodeWorker()
    async with writers(worker) as house:
        await house.leave(worker)
        error, _ = await refusal(house.inference.Generate(ask()))
        assert error.code() is CODE.UNAVAILABLE
        assert not (await house.oip.ModelReady(oip_pb2.ModelReadyRequest(name=WRITER))).ready


async def test_an_encoder_worker_never_generates_and_a_decode_worker_never_classifies() -> None:
    worker = DecodeWorker(models=[writer(), *FakeWorker().models])
    async with writers(worker) as house:
        assert house.registry.membership("tiny") is None
        house.registry.report_models(
            house.registry.join(_encoder(), 0), _classifiers([writer("other")])
        )
        assert house.registry.membership("other") is None
        assert [model.name for model in house.registry.models()] == [WRITER]


def _encoder() -> WorkerIdentity:
    return WorkerIdentity("e1", "127.0.0.1:1", 1, "cpu", "avx2")


def _classifiers(described: list[common_pb2.ModelDescription]) -> tuple[ModelInfo, ...]:
    return read_models(described)
