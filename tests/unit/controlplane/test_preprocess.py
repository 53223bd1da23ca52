"""Text to tokens: every tokenizer the model needs, exact ids, honest limits, a bounded pool."""

from __future__ import annotations

import asyncio
import threading
import time
from array import array
from collections.abc import Iterator
from dataclasses import replace

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from controlplane.errors import InvalidRequest, Refused, Unavailable
from controlplane.preprocess import INLINE_CHARACTERS, Preprocessor
from controlplane.registry import ModelInfo, Registry, TokenizerInfo
from tests.unit.controlplane.fake_fleet import model

LONG = "good " * INLINE_CHARACTERS


def document(*words: str) -> bytes:
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token=words[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    # A document may ask for it; it must not happen.
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=8)
    text: str = tokenizer.to_str()
    return text.encode()


def two_tokenizers(*, limits: tuple[int, int] = (100, 100)) -> ModelInfo:
    plain = model()
    best, fast = plain.variants
    return replace(
        plain,
        tokenizers=(TokenizerInfo("words", "aa"), TokenizerInfo("other", "bb")),
        variants=(
            replace(best, max_tokens=limits[0]),
            replace(fast, tokenizer="other", max_tokens=limits[1]),
        ),
    )


@pytest.fixture
def registry() -> Registry:
    made = Registry()
    made.add_tokenizer("aa", document("[UNK]", "good", "film"))
    made.add_tokenizer("bb", document("[UNK]", "film", "good"))
    return made


@pytest.fixture
def preprocessor(registry: Registry) -> Iterator[Preprocessor]:
    made = Preprocessor(registry, threads=1, max_queued=1, now_ns=time.monotonic_ns)
    yield made
    made.close()


def ids(data: bytes) -> list[int]:
    return array("i", data).tolist()


async def test_every_tokenizer_of_the_variants_encodes(preprocessor: Preprocessor) -> None:
    payload, shapes = await preprocessor.tokenize(two_tokenizers(), ["good film x", "film"])
    assert ids(payload.ids["words"]) == [1, 2, 0, 2]
    assert ids(payload.ids["other"]) == [2, 1, 0, 1]
    assert payload.lengths == {"words": (3, 1), "other": (3, 1)}
    assert (shapes["words"].items, shapes["words"].tokens) == (2, 4)
    assert (shapes["words"].squared_tokens, shapes["words"].longest_tokens) == (10, 3)


async def test_the_pool_gives_what_the_loop_gives(preprocessor: Preprocessor) -> None:
    info = two_tokenizers(limits=(10_000, 10_000))
    assert preprocessor.tokenize_now(info, [LONG]) is None
    payload, shapes = await preprocessor.tokenize(info, [LONG])
    assert ids(payload.ids["words"]) == [1] * INLINE_CHARACTERS
    assert shapes["other"].tokens == INLINE_CHARACTERS


async def test_nothing_is_cut_and_too_long_is_refused_with_the_numbers(
    preprocessor: Preprocessor,
) -> None:
    with pytest.raises(InvalidRequest, match=r"5 tokens with tokenizer 'words' \(limit 4\)"):
        await preprocessor.tokenize(two_tokenizers(limits=(4, 2)), ["good good good good good"])
    payload, shapes = await preprocessor.tokenize(two_tokenizers(limits=(4, 2)), ["good " * 4])
    assert set(shapes) == set(payload.ids) == set(payload.lengths) == {"words"}


async def test_no_text_is_no_request(preprocessor: Preprocessor) -> None:
    with pytest.raises(InvalidRequest, match="at least one text"):
        await preprocessor.tokenize(two_tokenizers(), [])


async def test_a_model_of_tensors_takes_no_text(preprocessor: Preprocessor) -> None:
    with pytest.raises(InvalidRequest, match="takes tensors"):
        await preprocessor.tokenize(replace(model(), tokenizers=()), ["good"])


async def test_a_tokenizer_that_has_not_arrived_is_named(preprocessor: Preprocessor) -> None:
    with pytest.raises(Unavailable, match="'words' of model 'm'"):
        await preprocessor.tokenize(model(), ["good"])


async def test_a_full_pool_refuses_and_shows_it(
    preprocessor: Preprocessor, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()
    info = two_tokenizers(limits=(10_000, 10_000))
    threads = preprocessor._pool._pool
    real = threads.submit
    monkeypatch.setattr(threads, "submit", lambda work: real(lambda: (gate.wait(10), work())[1]))
    waiting = [asyncio.create_task(preprocessor.tokenize(info, [LONG])) for _ in range(2)]
    await asyncio.sleep(0)
    held = preprocessor.saturation()
    assert (held.running, held.queued, held.threads, held.capacity) == (1, 1, 1, 2)
    with pytest.raises(Refused) as refused:
        await preprocessor.tokenize(info, [LONG])
    assert refused.value.retry_after_ms >= 1
    # Short texts need no thread and still pass.
    assert preprocessor.tokenize_now(info, ["good"]) is not None
    waiting[1].cancel()
    gate.set()
    _, shapes = await waiting[0]
    assert shapes["words"].items == 1
    for _ in range(1000):
        if not preprocessor.saturation().running:
            break
        await asyncio.sleep(0.001)
    assert preprocessor.saturation() == replace(held, running=0, queued=0)


async def test_the_vocabulary_of_a_tokenizer_is_known(preprocessor: Preprocessor) -> None:
    assert preprocessor.vocabulary(two_tokenizers(), "words") == 3
    assert preprocessor.vocabulary(two_tokenizers(), "third") == 0


async def test_a_prepared_tokenizer_needs_no_document_any_more() -> None:
    """What is slow to build is built before the first text, and once."""
    elsewhere = Preprocessor(Registry(), threads=1, max_queued=1, now_ns=time.monotonic_ns)
    documents = {"aa": document("[UNK]", "good"), "bb": document("[UNK]", "film")}
    await elsewhere.prepare(documents)
    await elsewhere.prepare(dict.fromkeys(documents, b"never read again"))
    payload, _ = await elsewhere.tokenize(two_tokenizers(), ["good film"])
    assert ids(payload.ids["words"]) == [1, 0]
    assert elsewhere.vocabulary(two_tokenizers(), "other") == 2
    elsewhere.close()
