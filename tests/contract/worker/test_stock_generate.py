"""Exported decoders through the call that serves paged ones, held to a plain loop."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from protos.orchid.v1 import common_pb2
from tests.contract.worker.generating import (
    CONTEXT,
    MODEL,
    Plain,
    call_of,
    generating,
    hear,
    lane_of,
    prompt_of,
    text_of,
)
from worker.models.decoder import Architecture
from worker.models.importer import ImportOptions, import_model
from worker.models.progress import Silent
from worker.models.synthetic_generator import write_tiny_export
from worker.stock_decode import StockDecodeEngine

ARCHITECTURES: tuple[Architecture, ...] = ("llama", "gpt2")


@pytest.fixture(scope="module", params=ARCHITECTURES)
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with an imported export of each architecture."""
    root = tmp_path_factory.mktemp("exported")
    source = write_tiny_export(root / "export", request.param, context=CONTEXT)
    import_model(source, root / "models", ImportOptions(name=MODEL), Silent())
    return root / "models"


@pytest.fixture(scope="module")
def plain(exported: Path) -> Plain:
    return Plain(exported, MODEL)


async def test_greedy_text_is_that_of_a_plain_loop(exported: Path, plain: Plain) -> None:
    async with generating(exported) as served:
        assert isinstance((await lane_of(served)).engine, StockDecodeEngine)
        for length in (1, 16, 17, 100):
            prompt = prompt_of(length, length)
            expected = plain.tokens(prompt, 24)
            heard = await hear(served, call_of(prompt, max_tokens=24))
            assert heard.tokens.get(0, []) == expected
            assert heard.text.get(0, "") == text_of(expected)


async def test_together_is_alone(exported: Path, plain: Plain) -> None:
    prompts = [prompt_of(seed, 1 + 13 * seed) for seed in range(12)]
    async with generating(exported) as served:
        heard = await asyncio.gather(
            *(
                hear(served, call_of(prompt, max_tokens=40, ignore_end=True, tenant=str(i % 3)))
                for i, prompt in enumerate(prompts)
            )
        )
    for prompt, each in zip(prompts, heard, strict=True):
        assert each.tokens[0] == plain.tokens(prompt, 40, ends=())


async def test_a_prompt_that_was_read_before_is_found_again(exported: Path, plain: Plain) -> None:
    prompt = prompt_of(5, 90)
    expected = plain.tokens(prompt, 12, ends=())
    async with generating(exported) as served:
        for cached in (0, 80):
            heard = await hear(served, call_of(prompt, max_tokens=12, ignore_end=True))
            assert heard.admitted is not None
            assert heard.admitted.cached_tokens == cached
            assert heard.tokens[0] == expected
        other = await hear(served, call_of(prompt, max_tokens=2, tenant="other"))
        assert other.admitted is not None
        assert other.admitted.cached_tokens == 0


async def test_answers_of_one_prompt_share_it_and_are_sampled_apart(exported: Path) -> None:
    sampling = common_pb2.Sampling(temperature=1.5, seed=11)
    asked = call_of(prompt_of(6, 40), sampling=sampling, max_tokens=20, n=3, ignore_end=True)
    async with generating(exported) as served:
        heard = await hear(served, asked)
    assert [len(tokens) for tokens in heard.tokens.values()] == [20, 20, 20]
    assert len({tuple(tokens) for tokens in heard.tokens.values()}) == 3


async def test_sequences_that_do_not_fit_together_give_way_and_end(
    exported: Path, plain: Plain
) -> None:
    """An arena of fewer tokens than all of them need: some are preempted and computed again."""
    prompts = [prompt_of(seed, 60) for seed in range(8)]
    async with generating(exported, arena_mib=1) as served:
        heard = await asyncio.gather(
            *(hear(served, call_of(prompt, max_tokens=60, ignore_end=True)) for prompt in prompts)
        )
    for prompt, each in zip(prompts, heard, strict=True):
        assert each.tokens[0] == plain.tokens(prompt, 60, ends=())
