"""Generations through a real connection, held to a plain loop over the engine."""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import psutil
import pytest

from protos.orchid.v1 import common_pb2, worker_pb2
from tests.contract.worker.generating import (
    CONTEXT,
    MODEL,
    Heard,
    Plain,
    call_of,
    engine_held,
    generating,
    hear,
    prompt_of,
    refused,
    served_at_last,
    service_of,
    settled,
    text_of,
)
from tests.contract.worker.serving import Served, serve
from worker.models.synthetic_generator import build_tiny_generator


@pytest.fixture(scope="module")
def generators(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with the tiny generator."""
    repository = tmp_path_factory.mktemp("generators")
    build_tiny_generator(repository, MODEL, context=CONTEXT)
    return repository


@pytest.fixture(scope="module")
def plain(generators: Path) -> Plain:
    return Plain(generators)


async def test_greedy_text_is_that_of_a_plain_loop(generators: Path, plain: Plain) -> None:
    async with generating(generators) as served:
        for length in (1, 15, 16, 17, 100):
            prompt = prompt_of(length, length)
            expected = plain.tokens(prompt, 24)
            heard = await hear(served, call_of(prompt, max_tokens=24))
            assert heard.tokens[0] == expected
            assert heard.text[0] == text_of(expected)
            finished = heard.finished[0]
            ended = len(expected) < 24
            assert finished.reason == (
                common_pb2.FINISH_REASON_STOP if ended else common_pb2.FINISH_REASON_LENGTH
            )
            assert finished.generated_tokens == len(expected) + ended
            assert heard.admitted is not None
            assert heard.admitted.prompt_tokens == length
            assert heard.usage is not None
            assert heard.usage.generated_tokens == finished.generated_tokens


async def test_together_is_alone(generators: Path, plain: Plain) -> None:
    prompts = [prompt_of(seed, 1 + 13 * seed) for seed in range(12)]
    async with generating(generators) as served:
        heard = await asyncio.gather(
            *(
                hear(served, call_of(prompt, max_tokens=40, tenant=str(i % 3)))
                for i, prompt in enumerate(prompts)
            )
        )
    for prompt, each in zip(prompts, heard, strict=True):
        assert each.tokens[0] == plain.tokens(prompt, 40)


async def test_stop_strings_cut_the_text_across_tokens(generators: Path, plain: Plain) -> None:
    prompt = prompt_of(3, 20)
    text = text_of(plain.tokens(prompt, 60, ends=()))
    # A stop that begins and ends inside the text, wherever the tokens' borders are.
    for start, length in ((5, 1), (9, 2), (20, 5), (31, 3)):
        stop = text[start : start + length]
        cut = text.index(stop)
        async with generating(generators) as served:
            heard = await hear(
                served, call_of(prompt, max_tokens=60, ignore_end=True, stop=["\x00never", stop])
            )
        assert heard.text[0] == text[:cut]
        assert heard.finished[0].stop == stop
        assert heard.finished[0].reason == common_pb2.FINISH_REASON_STOP


async def test_penalties_and_biases_reach_the_choice(generators: Path, plain: Plain) -> None:
    prompt = prompt_of(4, 30)
    first = plain.tokens(prompt, 1, ends=())[0]
    async with generating(generators) as served:

        async def tokens(**asked: Any) -> list[int]:
            sampling = common_pb2.Sampling(**asked)
            call = call_of(prompt, max_tokens=24, ignore_end=True, sampling=sampling)
            return (await hear(served, call)).tokens[0]

        assert first not in await tokens(logit_bias={first: -100})
        assert await tokens(logit_bias={5: 100}) == [5] * 24
        # Each time it occurs it loses 2 beside a lead of 9.
        alternating = await tokens(logit_bias={5: 100, 6: 91}, frequency_penalty=2)
        assert 1 < alternating.count(5) < 24 and 6 in alternating
        once = await tokens(logit_bias={5: 100, 6: 99, 7: 99}, presence_penalty=2)
        assert set(once[:3]) == {5, 6, 7}
        error = await refused(
            served, call_of(prompt, sampling=common_pb2.Sampling(logit_bias={10**6: 1}))
        )
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "logit_bias[0] is outside the vocabulary" in (error.details() or "")


async def test_stop_and_end_tokens(generators: Path, plain: Plain) -> None:
    prompt = prompt_of(4, 30)
    tokens = plain.tokens(prompt, 20, ends=())
    async with generating(generators) as served:
        stopped = await hear(
            served, call_of(prompt, max_tokens=20, stop_token_ids=[tokens[7]], ignore_end=True)
        )
        ignoring = await hear(served, call_of(prompt, max_tokens=20, ignore_end=True))
    first = tokens.index(tokens[7])
    assert stopped.tokens.get(0, []) == tokens[:first]
    assert stopped.finished[0].generated_tokens == first + 1
    assert stopped.finished[0].reason == common_pb2.FINISH_REASON_STOP
    assert ignoring.tokens[0] == tokens
    assert ignoring.text[0] == text_of(tokens)


async def test_the_context_bounds_an_answer_without_max_tokens(generators: Path) -> None:
    async with generating(generators) as served:
        heard = await hear(served, call_of(prompt_of(5, CONTEXT - 10), ignore_end=True))
    assert heard.finished[0].reason == common_pb2.FINISH_REASON_LENGTH
    assert heard.finished[0].generated_tokens == 10


async def test_a_seed_decides_each_answer_in_any_company(generators: Path) -> None:
    sampling = common_pb2.Sampling(temperature=1.0, top_p=0.9, seed=11)
    prompt = prompt_of(6, 40)
    asked = call_of(prompt, sampling=sampling, max_tokens=30, n=3)
    async with generating(generators) as served:
        alone = await hear(served, asked)
        others = [
            call_of(prompt_of(seed, 25), sampling=common_pb2.Sampling(temperature=2.0), n=2)
            for seed in range(4)
        ]
        together, *_ = await asyncio.gather(
            hear(served, asked), *(hear(served, other) for other in others)
        )
        single = await hear(served, call_of(prompt, sampling=sampling, max_tokens=30))
    assert together.tokens == alone.tokens
    assert single.tokens[0] == alone.tokens[0]
    assert len({tuple(tokens) for tokens in alone.tokens.values()}) == 3
    assert alone.usage is not None
    made = sum(finished.generated_tokens for finished in alone.finished.values())
    assert alone.usage.generated_tokens == made


async def test_log_probabilities_come_with_every_token(generators: Path, plain: Plain) -> None:
    prompt = prompt_of(7, 12)
    async with generating(generators) as served:
        heard = await hear(served, call_of(prompt, max_tokens=10, logprobs=3))
    scores = heard.scores[0]
    assert [score.chosen.token_id for score in scores] == heard.tokens[0] != []
    for score in scores:
        assert [a.logprob for a in score.alternatives] == sorted(
            (a.logprob for a in score.alternatives), reverse=True
        )
        # Greedy: the first alternative is what was chosen.
        assert score.alternatives[0] == score.chosen
        assert score.chosen.logprob <= 0
    text = b"".join(score.chosen.token for score in scores).decode(errors="replace")
    assert text == heard.text[0]


async def test_a_repeated_prompt_is_found_in_the_cache_of_its_tenant_only(
    generators: Path, plain: Plain
) -> None:
    prompt = prompt_of(8, 200)
    async with generating(generators) as served:
        first = await hear(served, call_of(prompt, max_tokens=4, tenant="a"))
        again = await hear(served, call_of(prompt, max_tokens=4, tenant="a"))
        other = await hear(served, call_of(prompt, max_tokens=4, tenant="b"))
    found = [each.admitted.cached_tokens for each in (first, again, other) if each.admitted]
    assert found == [0, 192, 0]
    assert first.tokens == again.tokens == other.tokens == {0: plain.tokens(prompt, 4)}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"prompt": []}, "no token"),
        ({"prompt": [1, 99999]}, r"prompt\[1\] is outside the vocabulary.*ids below 265"),
        ({"prompt": [1] * CONTEXT}, f"{CONTEXT} of the prompt and an answer exceed.*{CONTEXT}"),
        ({"prompt": [1] * 500, "max_tokens": 13}, "500 of the prompt and 13 more exceed.*512"),
        ({"n": 17}, "n is 17; accepted is at most 16"),
        ({"logprobs": 21}, "logprobs is 21; accepted is at most 20"),
        ({"stop": ["a"] * 17}, "stop strings is 17; accepted is at most 16"),
        ({"stop": ["", "b"]}, r"stop\[0\] is empty"),
        ({"stop": ["x" * 257]}, r"length of stop\[0\] is 257; accepted is at most 256"),
        ({"stop_token_ids": [265]}, r"stop_token_ids\[0\] is outside the vocabulary"),
        ({"sampling": common_pb2.Sampling(temperature=-1)}, "temperature is -1; accepted is 0"),
        ({"sampling": common_pb2.Sampling(top_p=1.1)}, "top_p is 1.1; accepted is 0 to 1"),
        ({"first_token_target_us": -5}, "first_token_target_us is -5"),
    ],
)
async def test_what_cannot_be_served_is_named(
    generators: Path, changes: dict[str, Any], named: str
) -> None:
    async with generating(generators) as served:
        error = await refused(served, call_of(**({"prompt": [5]} | changes)))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert re.search(named, error.details() or "")


async def test_unknown_models_and_variants_are_named(generators: Path) -> None:
    async with generating(generators) as served:
        unknown = await refused(served, call_of([5], model="other"))
        call = call_of([5])
        call.variant = "q9"
        variant = await refused(served, call)
    assert (unknown.code(), variant.code()) == (grpc.StatusCode.NOT_FOUND,) * 2
    assert MODEL in (unknown.details() or "")
    assert f"{MODEL}-fp32" in (variant.details() or "")


async def test_an_encoder_worker_does_not_generate(generators: Path, repository: Path) -> None:
    async with serve(repository) as served:
        error = await refused(served, call_of([5], model="tiny"))
    assert error.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_more_than_the_arena_holds_is_refused_with_the_numbers(tmp_path: Path) -> None:
    build_tiny_generator(tmp_path, MODEL, context=4096)
    async with generating(tmp_path, arena_mib=1) as served:
        (load,) = service_of(served).engine.loads
        # Keys and values of a token take 512 bytes.
        assert load.state.total_blocks * 16 == (1 << 20) // 512
        error = await refused(served, call_of([5] * 100, max_tokens=3000))
        heard = await hear(served, call_of([5] * 100, max_tokens=10, ignore_end=True))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "100 of the prompt and 3000 more never fit" in (error.details() or "")
    assert "2048 tokens" in (error.details() or "")
    assert heard.finished[0].generated_tokens == 10


async def test_a_full_queue_is_refused_with_a_time_to_try_again(generators: Path) -> None:
    async with generating(generators, max_queued_items=2) as served, engine_held(served):
        waiting = [
            asyncio.create_task(hear(served, call_of(prompt_of(i, 50), max_tokens=100)))
            for i in range(12)
        ]
        loop = service_of(served).engine
        await served.until(lambda: loop.state().queued_items == 12)
    results = await asyncio.gather(*waiting, return_exceptions=True)
    errors = [r for r in results if isinstance(r, grpc.aio.AioRpcError)]
    assert 0 < len(errors) <= 10
    for error in errors:
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        after = dict(error.trailing_metadata())["retry-after-ms"]
        assert int(str(after)) >= 1


async def test_a_first_token_that_would_be_late_is_refused_at_once(generators: Path) -> None:
    async with generating(generators) as served:
        late = call_of(prompt_of(1, 400), first_token_target_us=1)
        error = await refused(served, late)
        late.first_token_target_grows = True
        assert (await served_at_last(served, late)).tokens[0]
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "a longer first_token_target_ms is needed" in (error.details() or "")


async def test_a_deadline_before_the_first_token_is_all_there_is_to_say(generators: Path) -> None:
    async with generating(generators) as served:
        late = await refused(served, call_of([5, 6], budget_us=-1))
        async with engine_held(served):
            # Answered at its deadline, though the engine is busy.
            waiting = await refused(served, call_of([5, 6], budget_us=20_000))
    assert (late.code(), waiting.code()) == (grpc.StatusCode.DEADLINE_EXCEEDED,) * 2


async def test_a_drain_finishes_what_was_accepted(generators: Path, plain: Plain) -> None:
    prompt = prompt_of(10, 60)
    async with generating(generators) as served:
        loop = service_of(served).engine
        async with engine_held(served):
            running = asyncio.create_task(hear(served, call_of(prompt, max_tokens=50)))
            await served.until(lambda: loop.state().queued_items == 1)
            draining = asyncio.ensure_future(served.stub.Drain(worker_pb2.DrainRequest()))
            await served.until(lambda: loop.state().draining)
            error = await refused(served, call_of(prompt))
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert (await running).tokens[0] == plain.tokens(prompt, 50)
        assert (await draining).finished_items == 1


async def test_an_unload_finishes_what_was_accepted_and_a_load_serves_again(
    generators: Path, plain: Plain
) -> None:
    prompt = prompt_of(11, 60)
    async with generating(generators) as served:
        loop = service_of(served).engine
        async with engine_held(served):
            running = asyncio.create_task(hear(served, call_of(prompt, max_tokens=50)))
            await served.until(lambda: loop.state().queued_items == 1)
            unloading = asyncio.ensure_future(
                served.stub.Unload(worker_pb2.UnloadRequest(model=MODEL))
            )
            await served.until(lambda: served.app.host.describe()[0].state.value == "unloading")
        assert (await running).tokens[0] == plain.tokens(prompt, 50)
        await unloading
        assert loop.loads == ()
        assert (await refused(served, call_of(prompt))).code() is grpc.StatusCode.NOT_FOUND
        async for progress in served.stub.Load(worker_pb2.LoadRequest(model=MODEL)):
            last = progress.model
        assert last.state == common_pb2.READINESS_STATE_READY
        assert (await hear(served, call_of(prompt, max_tokens=50))).tokens == (await running).tokens


async def test_a_warm_measures_again_while_it_serves(generators: Path) -> None:
    async with generating(generators) as served:
        running = asyncio.create_task(hear(served, call_of([5], ignore_end=True)))
        answer = await served.stub.Warm(worker_pb2.WarmRequest(model=MODEL))
        await running
    (variant,) = answer.model.variants
    assert variant.decode.prefill_us_per_token > 0
    assert variant.decode.arena_tokens % 16 == 0


async def test_what_is_described_is_what_a_control_plane_needs(generators: Path) -> None:
    async with generating(generators) as served:
        request = worker_pb2.DescribeRequest(include_tokenizers=True)
        (model,) = (await served.stub.Describe(request)).models
        load = served.app.service.load()
    assert (model.task, model.state) == ("text-generation", common_pb2.READINESS_STATE_READY)
    assert (model.generation.context, list(model.generation.end_tokens)) == (CONTEXT, [0, 2])
    assert "im_start" in model.generation.chat_template
    assert b"ByteLevel" in model.tokenizers[0].document
    (variant,) = model.variants
    assert (variant.layout, variant.ready) == ("paged", True)
    assert (variant.decode.kv_bytes_per_token, variant.HasField("profile")) == (512, False)
    (decode,) = load.decode
    assert (decode.model, decode.free_blocks) == (MODEL, decode.total_blocks)


async def test_a_slow_reader_gets_fewer_and_larger_pieces(generators: Path, plain: Plain) -> None:
    prompt = prompt_of(12, 10)
    async with generating(generators) as served:
        call = served.stub.Generate(call_of(prompt, n=8, ignore_end=True, logprobs=20))
        loop = service_of(served).engine
        # Nobody reads until everything is made: flow control holds the rest in the mailbox.
        await served.until(lambda: loop.loads[0].state.generated_tokens >= 8 * (CONTEXT - 10))
        heard, pieces = Heard(), 0
        async for event in call:
            heard.add(event)
            pieces += event.WhichOneof("event") == "delta"
    expected = plain.tokens(prompt, CONTEXT - 10, ends=())
    assert all(tokens == expected for tokens in heard.tokens.values())
    assert len(heard.tokens) == 8
    assert pieces < 8 * len(expected)


async def test_streams_cut_at_random_leave_nothing_behind(generators: Path, plain: Plain) -> None:
    random = np.random.default_rng(1)
    streams = int(os.environ.get("ORCHID_STREAMS", "200"))
    process = psutil.Process()
    prompts = [prompt_of(seed, length) for seed, length in enumerate((3, 40, 130, 300))]
    expected = [plain.tokens(prompt, 60, ends=()) for prompt in prompts]
    resident: list[int] = []

    async def cut(served: Served, kind: int, events: int) -> None:
        heard = Heard()
        sampled = common_pb2.Sampling(temperature=1.5) if kind % 2 else None
        call = served.stub.Generate(
            call_of(
                prompts[kind],
                max_tokens=60,
                ignore_end=True,
                n=1 + kind % 3,
                sampling=sampled,
                tenant=str(kind % 2),
            )
        )
        if events == 0:
            await asyncio.sleep(0)
        else:
            async for event in call:
                heard.add(event)
                events -= 1
                if events == 0:
                    break
        call.cancel()

    async def whole(served: Served, kind: int) -> None:
        heard = await hear(served, call_of(prompts[kind], max_tokens=60, ignore_end=True))
        assert heard.tokens[0] == expected[kind]

    async def one(served: Served, gate: asyncio.Semaphore) -> None:
        kind, events = int(random.integers(4)), int(random.integers(40))
        async with gate:
            # One in eight is left alone and must not be disturbed by the others' ends.
            await (whole(served, kind) if random.random() < 0.125 else cut(served, kind, events))

    async with generating(generators, arena_mib=1) as served:
        for _ in range(4):
            gate = asyncio.Semaphore(32)
            await asyncio.gather(*(one(served, gate) for _ in range(streams // 4)))
            await settled(served)
            resident.append(process.memory_info().rss)
    # The first quarter fills caches and pools.
    assert resident[-1] - resident[0] < 64 << 20
